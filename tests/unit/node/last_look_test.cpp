// Goal:   a job that ends does not free the memory of a step which somebody has removed from
//         storage meanwhile: it is stored again. Storage that hangs or lacks the step for good does
//         not hold up the end.
// Method: one rank on a disk in memory stores two steps; the newest, or the whole directory, is
//         erased; then the job closes, or its daemon is asked to flush before its end.
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

using test::newest_of_two;

const std::string manifest = newest_of_two + "/manifest.json";

struct LastLook {
  LastLook() : disk(1) {
    disk.put_directory("/scratch");
    rank.emplace(disk);
    rank->begin_and_store_two_steps();
    REQUIRE(disk.exists(manifest));
  }
  std::size_t syncs_of_manifests() const {
    return static_cast<std::size_t>(std::ranges::count_if(disk.log(), [](const std::string& line) {
      return line.find("manifest") != std::string::npos && line.find("write") != std::string::npos;
    }));
  }
  test::MemoryDisk disk;
  std::optional<test::OneRank> rank;
};

}  // namespace

TEST_CASE("last look: what was removed is stored again by a close", "[unit][node]") {
  const std::string removed = GENERATE(as<std::string>{}, newest_of_two, "/scratch/job");
  LastLook scene;
  scene.disk.erase(removed);
  close(*scene.rank);
  CHECK(scene.disk.exists(manifest));
}

TEST_CASE("last look: what was removed is stored again before a daemon ends", "[unit][node]") {
  LastLook scene;
  test::OneRank& rank = *scene.rank;
  scene.disk.erase(newest_of_two);
  rank.engine->detach(rank.session);
  auto flushed = test::start(rank.context, rank.engine->flush(std::chrono::seconds(60), 2));
  const Status done = test::finish(rank.clock, flushed);
  REQUIRE((done ? "" : done.error().message()) == "");
  CHECK(scene.disk.exists(manifest));
  CHECK(rank.engine->held_json().find("\"lost\":null") != std::string::npos);
}

TEST_CASE("last look: a daemon that cannot store it again says so and goes on", "[unit][node]") {
  LastLook scene;
  test::OneRank& rank = *scene.rank;
  scene.disk.erase(newest_of_two);
  rank.engine->detach(rank.session);
  scene.disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "write" ? ENOSPC : 0; });
  auto flushed = test::start(rank.context, rank.engine->flush(std::chrono::seconds(60), 2));
  const Status done = test::finish(rank.clock, flushed);
  REQUIRE_FALSE(done);
  CAPTURE(done.error().text());
  CHECK(done.error().text().find(
            "step 2 was removed from /scratch/job, and is not durable again") != std::string::npos);
  CAPTURE(rank.engine->held_json());
  CHECK(rank.engine->held_json().find("\"lost\":2") != std::string::npos);
}

TEST_CASE("last look: what is there is not stored again", "[unit][node]") {
  LastLook scene;
  scene.disk.clear_log();
  close(*scene.rank);
  CHECK(scene.syncs_of_manifests() == 0);
}

TEST_CASE("last look: storage that hangs does not hold up the end", "[unit][node]") {
  LastLook scene;
  test::OneRank& rank = *scene.rank;
  scene.disk.stall_until(rank.clock.after(std::chrono::hours(1)));
  const Time before = rank.clock.now();
  REQUIRE(rank.engine->call(rank.session, control::Close{std::chrono::seconds(60)}));
  REQUIRE(rank.pass_until([&] { return rank.end.has_value(); }));
  CHECK(*rank.end);
  CHECK(rank.clock.now() - before < std::chrono::seconds(10));
}

}  // namespace ckpt::node
