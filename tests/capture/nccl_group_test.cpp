// Goal:   one rank's bytes reach the GPUs of all ranks, and wrong ones never pass as right. If
//         anything fails, hangs or dies, each call returns, and the communicator is aborted once.
// Method: ranks that are threads, on the stand-ins for the driver and for NCCL: sizes around what a
//         fingerprint covers, a changed bit, each call of NCCL that fails, ranks that do not come.
#include "device/nccl_group.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/units.hpp"
#include "support/nccl_stand_in/nccl_team.hpp"

namespace ckpt::test {

using Catch::Contains;

namespace {

// Nothing is left, neither of NCCL nor of the driver, but what the trainer has.
void check_nothing_is_left(NcclTeam& team, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) team.drop(rank);
  INFO(NcclTeam::violations());
  CHECK(NcclTeam::violations().empty());
  const NcclCounts counts = nccl_stand_in().counts();
  CHECK(counts.live == 0);
  CHECK(counts.joins == counts.aborts + counts.destroys);
  CHECK(stand_in().counts().live_streams == 1);
  CHECK(stand_in().counts().live_events == 0);
  CHECK(stand_in().counts().pinned_ranges == 0);
  CHECK(stand_in().counts().retained_contexts == team.contexts());
}

// Why not; empty: all have succeeded.
std::string texts(const std::vector<Status>& results) {
  std::string text;
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    if (!results[rank]) text += fmt::format("rank {}: {}\n", rank, results[rank].error().message());
  return text;
}

}  // namespace

TEST_CASE("nccl group: all ranks get the root's bytes, from any root", "[unit][device]") {
  for (const int ranks : {1, 2, 3}) {
    for (int root = 0; root < ranks; ++root) {
      NcclTeamOptions options;
      options.ranks = ranks;
      options.driver = fmt::format("seed={}", 10 * ranks + root);
      options.parts = {0, 1, 7, 8, 4 * MiB - 1, 0, 4 * MiB, 4 * MiB + 1, 65'000};
      NcclTeam team(options);
      const std::string reasons = texts(team.hand_round(root));
      INFO(ranks << " ranks, root " << root << ": " << reasons);
      REQUIRE(reasons.empty());
      REQUIRE(team.all_have(root));
      CHECK(nccl_stand_in().counts().aborts == 0);
      check_nothing_is_left(team, ranks);
    }
  }
}

TEST_CASE("nccl group: it broadcasts often, and from one rank after the other", "[unit][device]") {
  NcclTeam team({});
  const auto results = team.on_each([&](int rank) -> Status {
    CKPT_CHECK(team.open(rank, in_a_minute()));
    for (const int root : {0, 0, 1, 0, 1}) CKPT_CHECK(team.broadcast(rank, root, in_a_minute()));
    return {};
  });
  REQUIRE(texts(results).empty());
  REQUIRE(team.all_have(0));
  check_nothing_is_left(team, 2);
}

TEST_CASE("nccl group: nothing to send is nothing to wait for", "[unit][device]") {
  NcclTeamOptions options;
  options.parts = {0, 0};
  NcclTeam team(options);
  REQUIRE(texts(team.hand_round(0)).empty());
  CHECK(nccl_stand_in().counts().broadcasts == 0);
  check_nothing_is_left(team, 2);
}

TEST_CASE("nccl group: a bit that changes on the way is found, with its part", "[unit][device]") {
  // The fourth broadcast is that of the fingerprints.
  for (const int broadcast : {1, 2, 3, 4}) {
    NcclTeamOptions options;
    options.nccl = fmt::format("corrupt={}", broadcast);
    NcclTeam team(options);
    const auto results = team.hand_round(0);
    CHECK(results[0]);
    REQUIRE_FALSE(results[1]);
    CHECK(results[1].error().code() == Errc::corruption);
    if (broadcast < 4)
      CHECK_THAT(results[1].error().text(), Contains(fmt::format("part {} of 3", broadcast)));
    // The ranks may go on with it.
    CHECK(nccl_stand_in().counts().aborts == 0);
    check_nothing_is_left(team, 2);
  }
}

TEST_CASE("nccl group: a changed bit is found in each Chunk of a part", "[unit][device]") {
  NcclTeamOptions options;
  options.parts = {0, 100, 8 * MiB + 3};  // The middle lies in the second Chunk.
  options.nccl = "corrupt=2";
  NcclTeam team(options);
  const auto results = team.hand_round(1);
  REQUIRE_FALSE(results[0]);
  CHECK_THAT(results[0].error().text(), Contains("part 3 of 3"));
  CHECK_THAT(results[0].error().text(), Contains("bytes 4194304 to 8388608"));
}

TEST_CASE("nccl group: a rank that never joins costs the others no more than their deadline",
          "[unit][device]") {
  for (const char* words : {"", "hang_join=1"}) {
    NcclTeamOptions options;
    options.nccl = words;
    NcclTeam team(options);
    const Status alone = team.open(0, passed());
    REQUIRE_FALSE(alone);
    CHECK(alone.error().code() == Errc::unavailable);
    CHECK_THAT(alone.error().text(), Contains("did not end in time"));
    CHECK(nccl_stand_in().counts().aborts == 1);
    check_nothing_is_left(team, 2);
  }
}

TEST_CASE("nccl group: a rank that dies in mid-broadcast ends it for the others",
          "[unit][device]") {
  const bool is_told = GENERATE(false, true);
  NcclTeamOptions options;
  options.ranks = 3;
  options.nccl = is_told ? "tells_abort=1" : "hang_broadcast=1";
  NcclTeam team(options);
  REQUIRE(texts(team.on_each([&](int rank) { return team.open(rank, in_a_minute()); })).empty());
  const auto results = team.on_each([&](int rank) -> Status {
    if (rank == 1 && is_told) {
      team.drop(rank);
      return {};
    }
    return team.broadcast(rank, 0, is_told ? in_a_minute() : passed());
  });
  for (const int rank : {0, 2}) {
    const Status& result = results[static_cast<std::size_t>(rank)];
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == (is_told ? Errc::io : Errc::unavailable));
    CHECK(team.group(rank)->is_quiet());
    // A group that has ended stays so.
    const Status again = team.broadcast(rank, 0, in_a_minute());
    REQUIRE_FALSE(again);
    CHECK(again.error().code() == Errc::unavailable);
    CHECK(team.close(rank, in_a_minute()));
  }
  CHECK(nccl_stand_in().counts().aborts == 3);
  check_nothing_is_left(team, 3);
}

TEST_CASE("nccl group: each call of NCCL may fail, and the communicator is aborted once",
          "[unit][device]") {
  for (const char* call :
       {"ncclCommInitRankConfig", "ncclCommGetAsyncError", "state", "ncclGroupStart",
        "ncclBroadcast", "ncclGroupEnd", "ncclCommFinalize", "ncclCommDestroy"}) {
    for (int nth = 1; nth <= 4; ++nth) {
      NcclTeamOptions options;
      // The others learn of it, as by a connection that closes.
      options.nccl = fmt::format("rank=0 fail={} nth={} tells_abort=1", call, nth);
      NcclTeam team(options);
      const auto results = team.on_each([&](int rank) -> Status {
        const bool waits = std::string(call) != "ncclCommInitRankConfig";
        CKPT_CHECK(team.open(rank, rank == 0 || waits ? in_a_minute() : passed()));
        CKPT_CHECK(team.broadcast(rank, 0, in_a_minute()));
        return team.close(rank, in_a_minute());
      });
      INFO(call << " " << nth << ": " << texts(results));
      if (nth == 1) {
        REQUIRE_FALSE(results[0]);
        CHECK_THAT(results[0].error().text(), Contains("an error of the stand-in (3)"));
      }
      if (results[0]) CHECK(team.all_have(0));
      check_nothing_is_left(team, 2);
    }
  }
}

TEST_CASE("nccl group: each call of the driver may fail, and nothing is left", "[unit][device]") {
  const int error = GENERATE(999, 700);
  std::uint64_t calls = 0;
  const auto run = [&](std::uint64_t plant) {
    NcclTeamOptions options;
    options.ranks = 1;
    NcclTeam team(options);
    const std::uint64_t before = stand_in().counts().calls;
    if (plant > 0) stand_in().plant(plant, error);
    Status done = team.open(0, in_a_minute());
    if (done) done = team.broadcast(0, 0, in_a_minute());
    if (done) done = team.close(0, in_a_minute());
    calls = stand_in().counts().calls - before;
    INFO("call " << plant << " at " << stand_in().failed_call());
    team.drop(0);
    CHECK(nccl_stand_in().counts().live == 0);
    CHECK(std::string(nccl_stand_in().violations()).empty());
    stand_in().plant(0, 0);
    return done.has_value();
  };
  REQUIRE(run(0));
  const std::uint64_t all = calls;
  REQUIRE(all > 20);
  std::size_t failed = 0;
  for (std::uint64_t call = 1; call <= all; ++call) failed += run(call) ? 0 : 1;
  CHECK(failed > 10);
}

TEST_CASE("nccl group: work of the trainer that does not end is waited for no longer than asked",
          "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  NcclTeam team(options);
  REQUIRE(team.open(0, in_a_minute()));
  team.trainer().hold(true);
  team.trainer().write(static_cast<std::byte*>(team.parts(0)[0].data), {std::byte{1}});
  const auto stream = static_cast<CUstream>(team.trainer().stream().handle);
  const Status done = team.group(0)->broadcast(
      {0, team.parts(0), stream}, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  REQUIRE_FALSE(done);
  CHECK_THAT(done.error().text(), Contains("the trainer's work"));
  CHECK(nccl_stand_in().counts().broadcasts == 0);
  CHECK(team.group(0)->is_quiet());
  team.trainer().hold(false);
  check_nothing_is_left(team, 1);
}

TEST_CASE("nccl group: aborted work that goes on is reported, and keeps its memory",
          "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  options.nccl = "hang_broadcast=1 stuck=1";
  options.abort_patience = std::chrono::milliseconds(5);
  NcclTeam team(options);
  REQUIRE(team.open(0, in_a_minute()));
  const Status done = team.group(0)->broadcast(
      {0, team.parts(0), nullptr},
      std::chrono::steady_clock::now() + std::chrono::milliseconds(500));  // It begins by then.
  REQUIRE_FALSE(done);
  CHECK_FALSE(team.group(0)->is_quiet());
  team.drop(0);
  CHECK(nccl_stand_in().counts().aborts == 1);
  CHECK(NcclTeam::violations().empty());
  CHECK(stand_in().counts().pinned_ranges > 0);
}

TEST_CASE("nccl group: what is no memory of its GPU is refused before NCCL sees it",
          "[unit][device]") {
  NcclTeam team({});
  const auto results = team.on_each([&](int rank) -> Status {
    CKPT_CHECK(team.open(rank, in_a_minute()));
    std::vector<GpuPart> parts = team.parts(1 - rank);
    return team.group(rank)->broadcast({0, parts, nullptr}, in_a_minute());
  });
  for (const Status& result : results) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::invalid_argument);
    CHECK_THAT(result.error().text(), Contains("are no memory of GPU"));
  }
  CHECK(nccl_stand_in().counts().broadcasts == 0);
  check_nothing_is_left(team, 2);
}

TEST_CASE("nccl group: a part that ends behind the GPU's memory is refused", "[unit][device]") {
  NcclTeamOptions options;
  options.ranks = 1;
  NcclTeam team(options);
  REQUIRE(team.open(0, in_a_minute()));
  const std::vector<GpuPart> parts = {{team.parts(0)[0].data, GpuRanks::bytes_max}};
  const Status done = team.group(0)->broadcast({0, parts, nullptr}, in_a_minute());
  REQUIRE_FALSE(done);
  CHECK_THAT(done.error().text(), Contains("are no memory of GPU"));
}

TEST_CASE("nccl group: too many parts, and a root that is not there, are refused",
          "[unit][device]") {
  for (const int root : {-1, 2}) {
    NcclTeam team({});
    const auto results = team.on_each([&](int rank) -> Status {
      CKPT_CHECK(team.open(rank, in_a_minute()));
      return team.broadcast(rank, root, in_a_minute());
    });
    REQUIRE_FALSE(results[0]);
    CHECK(results[0].error().code() == Errc::invalid_argument);
  }
  NcclTeamOptions options;
  options.ranks = 1;
  options.parts = {8, 4 * MiB};
  for (const std::size_t part : {0, 1}) {
    NcclTeam team(options);
    REQUIRE(team.open(0, in_a_minute()));
    // Too many, or with too many bytes together.
    const std::size_t count =
        part == 0 ? GpuRanks::parts_max + 1 : GpuRanks::bytes_max / (4 * MiB) + 1;
    const std::vector<GpuPart> parts(count, team.parts(0)[part]);
    const Status done = team.group(0)->broadcast({0, parts, nullptr}, in_a_minute());
    REQUIRE_FALSE(done);
    CHECK(done.error().code() == Errc::invalid_argument);
    CHECK(nccl_stand_in().counts().broadcasts == 0);
  }
}

TEST_CASE("nccl library: one that is missing, too old or something else is no NCCL",
          "[unit][device]") {
  (void)nccl_stand_in();
  const std::string ours = std::getenv("CKPT_NCCL_LIBRARY");
  const auto refusal = [](const char* path) {
    ::setenv("CKPT_NCCL_LIBRARY", path, 1);
    const auto opened = device::NcclLibrary::open("");
    if (opened) return std::string();
    CHECK(opened.error().code() == Errc::unsupported);
    return opened.error().text();
  };
  CHECK_THAT(refusal("/nowhere/libnccl.so.2"), Contains("NCCL cannot be loaded"));
  CHECK_THAT(refusal("libm.so.6"), Contains("libm.so.6 has no ncclGetVersion"));
  REQUIRE(nccl_stand_in().reset("version=21304"));
  CHECK_THAT(refusal(ours.c_str()), Contains("NCCL 2.13.4; 2.14.0 is the oldest"));
  REQUIRE(nccl_stand_in().reset("fail=ncclGetVersion"));
  CHECK_FALSE(refusal(ours.c_str()).empty());
  REQUIRE(nccl_stand_in().reset(""));
  CHECK(refusal(ours.c_str()).empty());
}

}  // namespace ckpt::test
