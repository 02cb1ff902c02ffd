// Goal:   a damaged copy in memory, or a damaged file, is found before anybody needs it, and made
//         good again from another copy; where there is none, it serves nobody and training goes on.
// Method: engines of two nodes on a simulated network. A byte of a Slot, a replica or a file flips
//         behind the engine's back; then the good copies are lost, and what is left is restored.
#include <catch2/catch.hpp>

#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::Rules;

namespace {

Rules verified(std::string directory = {}) {
  Rules rules;
  rules.directory = std::move(directory);
  rules.verify_every = std::chrono::seconds(20);
  return rules;
}

std::uint64_t healed(Cluster& cluster, const std::string& node, const char* what) {
  return cluster.status(node).at("healed").at(what);
}

}  // namespace

TEST_CASE("healing: a damaged replica is sent again", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  cluster.damage_replicas(0);
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "B", "copies") == 1; }));
  CHECK(cluster.status("B").at("healed").at("newest") ==
        "the copy of step 5 rank 0 on node B was damaged, and came again from node A");
  CHECK(
      cluster.pass_until([&] { return cluster.status("A").at("steps").at(0).at("copies") == 2; }));
  cluster.lose("A");
  cluster.begin("BB");
  cluster.check_restored(Step{5}, 2);
}

TEST_CASE("healing: a damaged Slot of one's own is replaced from a peer", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  const auto before = cluster.status("A").at("slot_bytes");
  cluster.damage(0);
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "A", "copies") == 1; }));
  SECTION("which may then be lost") {
    cluster.lose("B");
    cluster.begin("AA");
    cluster.check_restored(Step{5}, 2);
  }
  SECTION("and its memory is given back when a newer step is committed") {
    CHECK(cluster.status("A").at("slot_bytes") > before);
    cluster.commit(Step{6});
    CHECK(cluster.pass_until([&] { return cluster.status("A").at("slot_bytes") == before; }));
  }
}

TEST_CASE("healing: a node takes copies of a rank that it had itself, and healed", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  cluster.damage(0);
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "A", "copies") == 1; }));
  cluster.begin("BA", verified());  // The launcher has numbered the nodes otherwise.
  cluster.check_restored(Step{5}, 2);
  cluster.commit(Step{6});
  cluster.commit(Step{7});
}

TEST_CASE("healing: a copy that a peer brings meanwhile is not kept beside the healed one",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  cluster.damage(1);
  cluster.end_world();
  cluster.limit_streams(16 * KiB);  // Each copy takes seconds.
  const auto before = cluster.status("B").at("slot_bytes");
  REQUIRE(cluster.pass_until([&] { return cluster.status("B").at("slot_bytes") > before; }));
  cluster.begin("BA", verified());  // Rank 1 is on node A now, which sends its copy to B.
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "B", "copies") == 1; }));
  cluster.limit_streams(0);
  for (const std::uint64_t step : {6u, 7u, 8u}) cluster.commit(Step{step});
}

TEST_CASE("healing: the second copy of a shard on one node is looked at, too", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  cluster.begin("BA", verified());  // B has a copy of rank 0 for A, and now its own one.
  cluster.check_restored(Step{5}, 2);
  const auto copies = [&] {
    const auto status = cluster.status("B");
    std::size_t count = 0;
    for (const auto& slot : status.at("slots"))
      if (slot.at("rank") == 0 && slot.at("state") == "sealed") ++count;
    return count;
  };
  REQUIRE(copies() == 2);
  SECTION("the one for the other node is damaged") {
    cluster.damage_replicas(0);
  }
  SECTION("its own one is damaged") {
    cluster.rank(0).last_slot = cluster.rank(0).offer->slot;
    cluster.damage(0);
  }
  REQUIRE(cluster.pass_until([&] { return copies() == 1; }));
  cluster.lose("A");
  cluster.begin("BB", verified());
  cluster.check_restored(Step{5}, 2);
  CHECK(cluster.rank(0).offer->source == RestoreSource::own_memory);
}

TEST_CASE("healing: without a peer the copy comes from storage", "[unit][node]") {
  Cluster cluster;
  Rules rules = verified("/scratch");
  rules.replicas = 1;
  cluster.begin("A", rules);
  cluster.store(Step{5});
  cluster.damage(0);
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "A", "copies") == 1; }));
  cluster.rot("/scratch/step-000000005/rank-00000.safetensors");
  cluster.begin("A", rules);
  cluster.check_restored(Step{5}, 1);
  CHECK(cluster.rank(0).offer->source == RestoreSource::own_memory);
}

TEST_CASE("healing: a damaged file is written anew from memory", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified("/scratch"));
  cluster.store(Step{5});
  cluster.rot("/scratch/step-000000005/rank-00001.safetensors");
  REQUIRE(cluster.pass_until([&] { return healed(cluster, "B", "files") == 1; }));
  CHECK(healed(cluster, "A", "files") == 0);
  cluster.lose("A");
  cluster.lose("B");
  cluster.begin("AB", verified("/scratch"));
  cluster.check_restored(Step{5}, 2);
  CHECK(cluster.rank(1).offer->source == RestoreSource::storage);
}

TEST_CASE("healing: without a good copy it gives up, and training goes on", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified());
  cluster.commit(Step{5});
  cluster.damage_replicas(0);
  cluster.damage(0);
  const auto is_gone = [&](const std::string& node) {
    const auto status = cluster.status(node);
    for (const auto& slot : status.at("slots"))
      if (slot.at("rank") == 0 && slot.at("state") == "sealed") return false;
    return true;
  };
  REQUIRE(cluster.pass_until([&] { return is_gone("A") && is_gone("B"); }));
  cluster.commit(Step{6});
  CHECK(healed(cluster, "A", "copies") == 0);
  CHECK(healed(cluster, "B", "copies") == 0);
  cluster.begin("AB", verified());
  cluster.check_restored(Step{6}, 2);
}

TEST_CASE("healing: good copies and files are left alone", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", verified("/scratch"));
  cluster.store(Step{5});
  const auto before = cluster.status("A").at("slots");
  cluster.pass_until([] { return false; });  // Two minutes: many verifications.
  CHECK(cluster.status("A").at("slots") == before);
  CHECK(cluster.status("A").at("healed").at("newest").is_null());
}

}  // namespace ckpt::node
