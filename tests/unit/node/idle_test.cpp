// Goal:   the memory of a job without a trainer is given back after the idle limit, and not before
//         what it holds is stored, where there is a directory; each step that is lost is named.
// Method: engines on a disk in memory, whose trainers are killed; hours of a fake clock.
#include <cerrno>
#include <nlohmann/json.hpp>

#include "support/captured_log.hpp"
#include "unit/node/hosts.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

constexpr Duration limit = std::chrono::hours(2);
constexpr Duration moment = std::chrono::minutes(1);

// One step is committed, in memory alone, and the trainer dies.
void capture_and_die(test::OneRank& rank) {
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  rank.engine->detach(rank.session);
}

nlohmann::json jobs(const test::OneRank& rank) {
  return nlohmann::json::parse(rank.engine->status_json())["jobs"];
}

}  // namespace

TEST_CASE("idle: a step in memory alone is stored before the memory is freed", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  capture_and_die(rank);
  rank.clock.advance(limit - moment);
  CHECK_FALSE(disk.exists("/scratch/job/step-000000001"));
  CHECK(jobs(rank).size() == 1);
  rank.clock.advance(2 * moment);
  CHECK(disk.exists("/scratch/job/step-000000001/manifest.json"));
  CHECK(jobs(rank).empty());
  CHECK(rank.engine->is_idle());
  CHECK(rank.restore().value() == Step{1});
}

TEST_CASE("idle: storage that fails keeps the memory for as long again, then the loss is named",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  capture_and_die(rank);
  disk.set_hook([](std::string_view verb, const std::string& path) {
    const bool is_data = path.find("/.step-") != std::string::npos;
    return verb == "write" && is_data ? ENOSPC : 0;
  });
  rank.clock.advance(2 * limit - moment);
  REQUIRE(jobs(rank).size() == 1);
  SECTION("a trainer comes back") {
    CHECK(rank.restore().value() == Step{1});
  }
  SECTION("storage takes it after all") {
    disk.set_hook({});
    rank.clock.advance(moment);
    CHECK(disk.exists("/scratch/job/step-000000001/manifest.json"));
  }
  SECTION("nobody comes") {
    const test::CapturedLog log(LogLevel::warning);
    rank.clock.advance(2 * moment);
    CHECK(jobs(rank).empty());
    CHECK(log.has("step 1 IS LOST"));
    CHECK(log.has("No space left"));
  }
}

TEST_CASE("idle: without a directory status tells how long the memory is kept", "[unit][node]") {
  test::MemoryDisk disk(1);
  test::OneRank rank(disk);
  rank.request.dir.clear();
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  CHECK(jobs(rank)[0]["memory_kept_seconds"].is_null());
  rank.engine->detach(rank.session);
  rank.clock.advance(moment);
  CHECK(jobs(rank)[0]["memory_kept_seconds"] == (limit - moment) / std::chrono::seconds(1));
  const test::CapturedLog log(LogLevel::warning);
  rank.clock.advance(limit);
  CHECK(jobs(rank).empty());
  CHECK(log.has("step 1 was in memory alone"));
}

TEST_CASE("idle: a node keeps its memory while another one has a trainer", "[unit][node]") {
  const std::size_t left_alone = GENERATE(0, 1);  // The coordinator, and the other.
  test::Hosts hosts({"left", "right"});
  REQUIRE(hosts.begin({"A", "B"}, {0, 1}));
  hosts.engines[left_alone]->detach(hosts.ranks[left_alone].session);
  hosts.clock.advance(2 * limit);
  REQUIRE(hosts.has_job(left_alone));
  const std::size_t last = 1 - left_alone;
  hosts.engines[last]->detach(hosts.ranks[last].session);
  hosts.clock.advance(limit - moment);
  for (const std::size_t host : {0, 1}) CHECK(hosts.has_job(host));
  hosts.clock.advance(2 * moment);
  for (const std::size_t host : {0, 1}) CHECK_FALSE(hosts.has_job(host));
}

}  // namespace ckpt::node
