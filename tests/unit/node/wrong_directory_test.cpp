// Goal:   a job that finds nothing to restore hears why its directory may be the wrong one: it was
//         made now, or the daemon had the job in another one before.
// Method: an engine on a disk in memory, and the answer to a restore.
#include "unit/node/two_steps.hpp"

using Catch::Contains;
using Catch::EndsWith;

namespace ckpt::node {
namespace {

const std::string nothing = "there is no checkpoint yet";
const std::string advice =
    "if this training is to go on, check the option dir, and that its disk is mounted";

std::string reason_of_nothing(test::OneRank& rank) {
  const auto restored = rank.restore();
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::not_found);
  return rank.answer->reason;
}

}  // namespace

TEST_CASE("wrong directory: one that was made for the job is named", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  const bool is_there = GENERATE(false, true);
  if (is_there) disk.put_directory("/scratch/job");
  test::OneRank rank(disk);
  const std::string reason = reason_of_nothing(rank);
  if (is_there) {
    CHECK(reason == nothing);
  } else {
    CHECK_THAT(reason, Contains(nothing + "; /scratch/job did not exist, and was made at ") &&
                           EndsWith(" UTC; " + advice));
  }
}

TEST_CASE("wrong directory: the one where the daemon had the job before is named", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  disk.put_directory("/scratch/other");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  close(rank);
  rank.engine->detach(rank.session);
  rank.request.dir = "/scratch/other";
  CHECK(reason_of_nothing(rank) ==
        nothing + "; this daemon had the job before in /scratch/job, with step 2; " + advice);
}

TEST_CASE("wrong directory: a step that is found leaves no doubt", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  test::OneRank rank(disk);
  REQUIRE(rank.restore());
  CHECK(rank.answer->reason.find("check the option dir") == std::string::npos);
}

}  // namespace ckpt::node
