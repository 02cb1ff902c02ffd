// Goal:   of all that would begin a timeline, one alone may; what is claimed and over goes.
// Method: claims on a directory in memory, of several Starts and at one moment.
#include "storage/timeline_claim.hpp"
#include "base/spawn.hpp"

#include "support/run_task.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using storage::Claimed;

DetachedTask claim_and_keep(storage::Site site, storage::Claim claim,
                            std::vector<Result<Claimed>>& all) {
  auto claimed = co_await storage::claim_timeline(site, claim);
  all.push_back(std::move(claimed));
}

}  // namespace

TEST_CASE("timeline claim: one of the daemons that come at once has it", "[unit][storage]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    asio::io_context context;
    FakeClock clock(context);
    MemoryDisk disk(seed);
    disk.put_directory("/scratch");
    disk.put_directory("/scratch/.libckpt");
    disk.set_latency(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
    MemoryFileSystem files(disk, &clock);
    const storage::Site site(files, clock, "/scratch");
    std::vector<Result<Claimed>> all;
    for (std::uint64_t daemon = 1; daemon <= 4; ++daemon) {
      run_detached(context.get_executor(), claim_and_keep(site, {2, daemon, daemon}, all));
    }
    clock.poll();
    while (all.size() < 4 && clock.advance_to_next()) {
    }
    REQUIRE(all.size() == 4);
    int times_claimed = 0;
    for (const auto& claimed : all) {
      REQUIRE((claimed ? "" : claimed.error().message()) == "");
      REQUIRE(*claimed != Claimed::before);
      if (*claimed == Claimed::now) ++times_claimed;
    }
    REQUIRE(times_claimed == 1);
    REQUIRE(disk.tree().size() == 3);  // scratch, .libckpt, the claim: nothing is left aside.
  }
}

TEST_CASE("timeline claim: a Start knows its own again, and a torn one is taken",
          "[unit][storage]") {
  asio::io_context context;
  FakeClock clock(context);
  MemoryDisk disk(1);
  disk.put_directory("/scratch");
  disk.put_directory("/scratch/.libckpt");
  MemoryFileSystem files(disk);
  const storage::Site site(files, clock, "/scratch");
  const auto claim = [&](std::uint64_t timeline, std::uint64_t start_id) {
    const auto claimed = run_task(context, storage::claim_timeline(site, {timeline, start_id, 1}));
    REQUIRE((claimed ? "" : claimed.error().message()) == "");
    return *claimed;
  };
  CHECK(claim(2, 77) == Claimed::now);
  CHECK(claim(2, 77) == Claimed::before);
  CHECK(claim(2, 78) == Claimed::taken);
  CHECK(claim(3, 78) == Claimed::now);
  CHECK(claim(12, 78) == Claimed::now);
  disk.put("/scratch/.libckpt/timeline-4", "");
  CHECK(claim(4, 79) == Claimed::taken);

  disk.put("/scratch/.libckpt/timeline-03", "foreign");
  REQUIRE(run_task(context, storage::discard_claims(site, 4)));
  const auto left = [&](const std::string& name) {
    return disk.exists("/scratch/.libckpt/" + name);
  };
  CHECK_FALSE(left("timeline-2"));
  CHECK_FALSE(left("timeline-3"));
  for (const std::string name : {"timeline-4", "timeline-12", "timeline-03"}) CHECK(left(name));
}

}  // namespace ckpt::test
