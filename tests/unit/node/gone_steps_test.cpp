// Goal:   stored steps that somebody removes or moves away under training are reported to the
//         trainer and in the status, with the time, and what retention removes is not.
// Method: an engine on a disk in memory, from which a hand removes directories between two saves.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "node/context.hpp"
#include "node/gone_steps.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

using Catch::Contains;

namespace ckpt::node {
namespace {

struct LosingRank {
  LosingRank() {
    disk.put_directory("/scratch");
    rank.emplace(disk);
  }
  void save(std::uint64_t step) {
    REQUIRE(rank->pass_until([&] { return !rank->granted.empty(); }));
    rank->capture(Step{step});
    REQUIRE(rank->pass_until([&] { return rank->durable == Step{step}; }));
    rank->clock.advance(std::chrono::seconds(1));
  }
  nlohmann::json gone() const {
    return nlohmann::json::parse(rank->engine->status_json())
        .at("jobs")
        .at(0)
        .at("gone_from_directory");
  }

  test::MemoryDisk disk{1};
  std::optional<test::OneRank> rank;
};

}  // namespace

TEST_CASE("gone steps: a directory that is removed is made again, and both sides hear of it",
          "[unit][node]") {
  LosingRank scene;
  scene.rank->begin_and_store_two_steps();
  scene.save(3);
  CHECK(scene.gone().is_null());
  CHECK(scene.rank->notice.degraded.empty());
  scene.disk.erase("/scratch/job");
  const std::string what =
      "step 3 and 2 more were in /scratch/job, and not there any more, noticed at ";
  scene.save(4);
  CHECK_THAT(scene.rank->notice.degraded, Contains(what) && Contains(" UTC: somebody has removed"));
  CHECK(scene.rank->notice.degraded.ends_with(
      "moved them; new steps go there, into a directory that is made again where it is gone"));
  CHECK_THAT(scene.gone().get<std::string>(), Contains(what));

  // The status keeps it; as trouble it passes with a newer step, after a while.
  scene.rank->clock.advance(std::chrono::seconds(62));
  CHECK(scene.rank->notice.degraded.empty());
  CHECK_THAT(scene.gone().get<std::string>(), Contains(what));
  scene.save(5);
  CHECK(scene.rank->notice.degraded.empty());
}

TEST_CASE("gone steps: it is trouble for as long as no newer step is stored", "[unit][node]") {
  LosingRank scene;
  scene.rank->begin_and_store_two_steps();
  scene.disk.erase("/scratch/job");
  scene.disk.set_hook([](std::string_view, const std::string& path) {
    return path.find("rank-00000") != std::string::npos ? EIO : 0;
  });
  scene.rank->capture(Step{3});
  scene.rank->clock.advance(std::chrono::minutes(5));
  CHECK_THAT(scene.rank->notice.degraded, Contains("step 2 and 1 more were in /scratch/job"));
  scene.disk.set_hook({});
  REQUIRE(scene.rank->pass_until([&] { return scene.rank->durable == Step{3}; }));
  scene.rank->clock.advance(std::chrono::seconds(2));
  CHECK(scene.rank->notice.degraded.empty());
}

TEST_CASE("gone steps: the newest one alone is named alone", "[unit][node]") {
  LosingRank scene;
  scene.rank->begin_and_store_two_steps();
  scene.disk.erase("/scratch/job/step-000000002");
  scene.save(3);
  CHECK_THAT(scene.gone().get<std::string>(),
             Contains("step 2 was in /scratch/job, and not there any more") &&
                 Contains("; if a backup was put there to go on from it: ") &&
                 Contains("`ckpt drop job`"));
}

TEST_CASE("gone steps: retention, and a step that is replaced or unread, are no loss",
          "[unit][node]") {
  LosingRank scene;
  SECTION("one step is kept") {
    scene.rank->request.max_ckpt_num = 1;
    scene.rank->begin_and_store_two_steps();
  }
  SECTION("a new timeline replaces a step") {
    scene.rank->begin_and_store_two_steps();
    scene.rank->engine->detach(scene.rank->session);
    scene.rank->granted.clear();
    REQUIRE(scene.rank->attach());
    scene.rank->answer.reset();
    REQUIRE(scene.rank->engine->call(scene.rank->session, control::AskRestore{1, Step{1}}));
    REQUIRE(scene.rank->pass_until([&] { return scene.rank->answer.has_value(); }));
    REQUIRE(scene.rank->answer->restored);
    scene.save(2);
  }
  SECTION("unread") {
    scene.rank->begin_and_store_two_steps();
    scene.disk.set_hook([](std::string_view verb, const std::string& path) {
      return verb == "read" && path == "/scratch/job/step-000000002/manifest.json" ? EACCES : 0;
    });
  }
  scene.save(3);
  scene.save(4);
  CHECK(scene.gone().is_null());
  CHECK(scene.rank->notice.degraded.find("not there any more") == std::string::npos);
}

// As `ckpt gc` does while the daemon has published a step, and does not list the directory yet.
TEST_CASE("gone steps: what another process removes where a newer step is there is no loss",
          "[unit][node]") {
  LosingRank scene;
  scene.rank->begin_and_store_two_steps();
  bool has_removed = false;
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb != "list" || path != "/scratch/job" || has_removed) return 0;
    if (!scene.disk.exists("/scratch/job/step-000000003/manifest.json")) return 0;
    has_removed = true;
    scene.disk.erase("/scratch/job/step-000000002");
    return 0;
  });
  scene.save(3);
  REQUIRE(has_removed);
  CHECK(scene.gone().is_null());
  CHECK(scene.rank->notice.degraded.empty());
  scene.save(4);
  CHECK(scene.gone().is_null());
}

TEST_CASE("gone steps: what another node has removed as the coordinator is no loss",
          "[unit][node]") {
  test::Cluster cluster;
  test::Rules rules;
  rules.directory = "/scratch/job";
  rules.max_ckpt_num = 1;
  cluster.begin("AB", rules);
  cluster.store(Step{1});
  cluster.begin("ABC", rules);  // C knows of step 1.
  cluster.store(Step{2});
  cluster.store(Step{3});
  cluster.lose("A");
  cluster.begin("CB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.status("C").at("coordinator") == "C"; }));
  cluster.store(Step{4});
  CHECK(cluster.status("C").at("gone_from_directory").is_null());
  CHECK(cluster.status("B").at("gone_from_directory").is_null());
}

TEST_CASE("gone steps: what a job removed while a node was not in its list is no loss",
          "[unit][node]") {
  test::Cluster cluster;
  test::Rules rules;
  rules.directory = "/scratch/job";
  rules.max_ckpt_num = 1;
  cluster.begin("AB", rules);
  cluster.store(Step{1});
  cluster.begin("B", rules);
  cluster.store(Step{2});
  cluster.store(Step{3});
  cluster.begin("AB", rules);
  cluster.store(Step{4});
  CHECK(cluster.status("A").at("coordinator") == "A");
  CHECK(cluster.status("A").at("gone_from_directory").is_null());
}

TEST_CASE("gone steps: a listing that was under way while steps changed shows no loss",
          "[unit][node]") {
  LosingRank scene;
  test::OneRank& rank = *scene.rank;
  EngineContext context{rank.context.get_executor(),
                        Seams{rank.clock, rank.memory, rank.files, *rank.front}, EngineOptions(),
                        arena::MemoryBudget(0), Random(1)};
  const JobFacts facts{.context = context, .boot = 1};
  GoneSteps gone(facts);
  const auto catalog_of = [](std::uint64_t step) {
    storage::Catalog catalog;
    catalog.checkpoints.resize(1);
    catalog.checkpoints[0].at = {1, Step{step}};
    return catalog;
  };
  const storage::Catalog none;
  const auto is_quiet = [&](const storage::Catalog& catalog, GoneSteps::Listing listing) {
    gone.look(catalog, listing, "/scratch/job");
    return gone.text().empty();
  };
  const GoneSteps::Listing before = gone.begin_listing();
  SECTION("another daemon has stored step 3, and its retention has removed step 2") {
    gone.remember(catalog_of(2).checkpoints, gone.begin_listing());
    CHECK(is_quiet(catalog_of(3), gone.begin_listing()));
  }
  SECTION("at a takeover: others have stored step 2, and removed step 1") {
    gone.forget();
    CHECK(is_quiet(catalog_of(1), before));
    gone.remember(catalog_of(1).checkpoints, before);
    const GoneSteps::Listing after = gone.begin_listing();
    CHECK(is_quiet(catalog_of(2), after));
    gone.remember(catalog_of(2).checkpoints, after);
  }
  SECTION("at a publication: it has stored step 2, and retention has removed step 1") {
    gone.remember(catalog_of(2).checkpoints, gone.begin_listing());
    CHECK(is_quiet(catalog_of(1), before));
    gone.remember(catalog_of(1).checkpoints, before);
    CHECK(is_quiet(catalog_of(2), gone.begin_listing()));
  }
  // One that began after it counts.
  CHECK_FALSE(is_quiet(none, gone.begin_listing()));
  CHECK_THAT(gone.text(), Contains("step 2 was in /scratch/job, and not there any more"));
}

}  // namespace ckpt::node
