// Goal:   bindings get NCCL by one small class whose calls all return, even where NCCL does not.
// Method: the public class on the stand-ins: two ranks that are threads; calls that block; an
//         environment and a GPU that are refused.
#include <catch2/catch.hpp>
#include <ckpt/gpu_ranks.hpp>
#include <cstdlib>
#include <thread>

#include "support/nccl_stand_in/nccl_team.hpp"

namespace ckpt::test {

using Catch::Contains;
using std::chrono::milliseconds;

namespace {

GpuRanks opened(int gpu, milliseconds abort_patience = long_enough) {
  GpuRanks::Options options;
  options.gpu = gpu;
  options.abort_patience = abort_patience;
  return GpuRanks::open(options).value();
}

}  // namespace

TEST_CASE("gpu ranks: an id, a place, a broadcast, an end", "[unit][device]") {
  NcclTeam team({});
  GpuRanks first = opened(0);
  const GpuRanks::Id id = first.make_id(long_enough).value();
  CHECK_THAT(first.library_name(), Contains("NCCL 2.27.3"));
  const auto results = team.on_each([&](int rank) -> Status {
    GpuRanks ranks = opened(rank);
    CKPT_CHECK(ranks.join({static_cast<std::uint32_t>(rank), 2, id, long_enough}));
    GpuBroadcast broadcast;
    broadcast.root = 1;
    broadcast.parts = team.parts(rank);
    broadcast.timeout = long_enough;
    CKPT_CHECK(ranks.broadcast(broadcast));
    if (!ranks.is_quiet()) return fail(Errc::io, "it is not quiet");
    return ranks.close(long_enough);
  });
  for (const Status& result : results) REQUIRE(result);
  CHECK(team.all_have(1));
  CHECK(NcclTeam::violations().empty());
  CHECK(nccl_stand_in().counts().live == 0);
  // Nobody has joined by it.
  const Status early = first.broadcast({});
  REQUIRE_FALSE(early);
  CHECK(early.error().code() == Errc::unavailable);
  CHECK(first.is_quiet());
}

TEST_CASE("gpu ranks: one that is dropped leaves nothing", "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  NcclTeam team(options);
  {
    GpuRanks ranks = opened(0);
    REQUIRE(ranks.join({0, 1, ranks.make_id(long_enough).value(), long_enough}));
    const Status again = ranks.join({0, 1, {}, long_enough});
    REQUIRE_FALSE(again);
    CHECK(again.error().code() == Errc::invalid_argument);
  }
  CHECK(nccl_stand_in().counts().joins == 1);
  CHECK(nccl_stand_in().counts().destroys == 1);
  CHECK(nccl_stand_in().counts().live == 0);
  CHECK(stand_in().counts().live_streams == 1);
}

TEST_CASE("gpu ranks: a call that ends by its own deadline is not given up", "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  options.nccl = "block=ncclCommAbort";
  NcclTeam team(options);
  GpuRanks ranks = opened(0);
  const GpuRanks::Id id = ranks.make_id(long_enough).value();
  // The deadline has passed when the abort goes on. A caller that would give up has the time to.
  std::thread other([] {
    while (nccl_stand_in().counts().blocked == 0) std::this_thread::yield();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();
    nccl_stand_in().let_go();
  });
  const Status late = ranks.join({0, 1, id, milliseconds(0)});
  other.join();
  REQUIRE_FALSE(late);
  CHECK_THAT(late.error().text(), Contains("did not end in time"));
  CHECK(nccl_stand_in().counts().aborts == 1);
  REQUIRE(ranks.join({0, 1, ranks.make_id(long_enough).value(), long_enough}));
  REQUIRE(ranks.close(long_enough));
}

TEST_CASE("gpu ranks: a call of NCCL that never returns is given up", "[unit][device]") {
  const bool is_joining = GENERATE(true, false);
  NcclTeamOptions options;
  options.ranks = 1;
  options.nccl = is_joining ? "block=ncclCommInitRankConfig" : "block=ncclGroupEnd";
  NcclTeam team(options);
  {
    GpuRanks ranks = opened(0, milliseconds(20));
    const GpuRanks::Id id = ranks.make_id(long_enough).value();
    Status done = ranks.join({0, 1, id, is_joining ? milliseconds(0) : long_enough});
    REQUIRE(done.has_value() == !is_joining);
    if (done) {
      GpuBroadcast broadcast;
      broadcast.parts = team.parts(0);
      broadcast.timeout = milliseconds(50);
      done = ranks.broadcast(broadcast);
    }
    REQUIRE_FALSE(done);
    CHECK(done.error().code() == Errc::unavailable);
    CHECK_THAT(done.error().text(), Contains("did not return in time"));
    // Nothing of the trainer's is in the hands of a call that joins.
    CHECK(ranks.is_quiet() == is_joining);
    CHECK_FALSE(ranks.broadcast({}));
    CHECK_FALSE(ranks.close(long_enough));
  }
  nccl_stand_in().let_go();
  while (nccl_stand_in().counts().live > 0 || nccl_stand_in().counts().joins == 0)
    std::this_thread::yield();
}

TEST_CASE("gpu ranks: a blocking NCCL, a GPU or a place that is not there is refused",
          "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  NcclTeam team(options);
  ::setenv("NCCL_COMM_BLOCKING", "1", 1);
  const auto blocking = GpuRanks::open({});
  ::unsetenv("NCCL_COMM_BLOCKING");
  REQUIRE_FALSE(blocking);
  CHECK(blocking.error().code() == Errc::unsupported);
  for (const int gpu : {-1, 1}) {
    GpuRanks::Options there;
    there.gpu = gpu;
    const auto absent = GpuRanks::open(there);
    REQUIRE_FALSE(absent);
    CHECK(absent.error().code() == Errc::unsupported);
  }
  GpuRanks ranks = opened(0);
  for (const std::uint32_t rank : {1u, 5u}) {
    const Status joined = ranks.join({rank, 1, {}, long_enough});
    REQUIRE_FALSE(joined);
    CHECK(joined.error().code() == Errc::invalid_argument);
  }
  CHECK(nccl_stand_in().counts().joins == 0);
}

}  // namespace ckpt::test
