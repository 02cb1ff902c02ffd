// TwoSteps: a run of OneRank's job that stored two steps and came to its orderly end.
#pragma once

#include "unit/node/one_rank.hpp"

namespace ckpt::test {

inline const std::string newest_of_two = "/scratch/job/step-000000002";

inline void close(OneRank& rank) {
  REQUIRE(rank.engine->call(rank.session, control::Close{std::chrono::seconds(60)}));
  REQUIRE(rank.pass_until([&rank] { return rank.end.has_value(); }));
  REQUIRE((*rank.end ? "" : rank.end->error().message()) == "");
}

inline void save_two_steps(MemoryDisk& disk) {
  OneRank rank(disk);
  rank.begin_and_store_two_steps();
  close(rank);
}

}  // namespace ckpt::test
