// Goal:   ranks that hold the same tensor and captured a part of it each get all of it back, from
//         memory, from peers after a loss, from storage and from all of them at once, and so does
//         any other number of ranks; a part that nobody has ends the restore by its name.
// Method: engines of several nodes on a simulated network. Each rank captures its part of one
//         tensor and wants all of it; every number of an offer is compared with what was saved.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::Rules;

namespace {

Rules copies(std::string directory = {}) {
  Rules rules;
  rules.are_copies = true;
  rules.directory = std::move(directory);
  return rules;
}

}  // namespace

TEST_CASE("copies: any number of ranks gets all of the tensor from memory", "[unit][node]") {
  const std::string places = GENERATE("A", "AB", "BAA", "AABB", "AABBAB", "CDA");
  Cluster cluster;
  cluster.begin("AABB", copies());
  cluster.commit(Step{5});
  cluster.begin(places, copies());
  cluster.check_restored(Step{5}, 4);
  cluster.commit(Step{6});
  cluster.begin(places, copies());
  cluster.check_restored(Step{6}, static_cast<std::uint32_t>(places.size()));
}

TEST_CASE("copies: a difference between divided ones reaches one trainer, and the status",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = copies("/scratch/run");
  rules.noted = {7, 7, 7, 7};
  cluster.begin("AABB", rules);
  cluster.store(Step{5});
  CHECK(cluster.status("A").at("copies_differ").is_null());
  cluster.end_world();
  rules.noted = {7, 8, 7, 8};
  cluster.begin("AABB", rules);
  cluster.commit(Step{6});
  cluster.flush(Step{6});
  const auto has_notice = [&](std::size_t rank) {
    return !cluster.rank(rank).notice.differ.empty();
  };
  REQUIRE(cluster.pass_until([&] { return has_notice(0); }));
  CHECK(cluster.rank(0).notice.differ == "step 6: \"divided\" differs: ranks 0, 2; ranks 1, 3");
  CHECK((!has_notice(1) && !has_notice(2) && !has_notice(3)));  // One line is enough.
  CHECK(cluster.status("A").at("copies_differ").at("tensor") == "divided");
}

TEST_CASE("copies: those of two ranks go to their target side by side, of four two by two",
          "[unit][node]") {
  const std::string places = GENERATE("AABB", "AAAABBBB");
  Cluster cluster;
  cluster.begin(places);
  cluster.commit(Step{5});
  constexpr std::uint64_t bytes_per_second = 16 * KiB;
  cluster.limit_streams(bytes_per_second);
  const Time began = cluster.now();
  cluster.commit(Step{6});
  const std::chrono::duration<double> took = cluster.now() - began;
  const std::uint64_t shard_bytes = test::numbers_in_all * 4 / places.size() + 2 * page_bytes;
  const double of_one = static_cast<double>(shard_bytes) / bytes_per_second;
  const double rounds = static_cast<double>(places.size()) / 4;
  CHECK(took.count() > 0.9 * rounds * of_one);
  CHECK(took.count() < 1.5 * rounds * of_one);
}

TEST_CASE("copies: the parts that a lost node had come from its peers", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB", copies());
  cluster.commit(Step{5});
  cluster.lose("B");
  const std::string places = GENERATE("AACC", "AAAA", "CCCC");
  if (places == "CCCC") {
    cluster.begin("CACC", copies());
    CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);
  } else {
    cluster.begin(places, copies());
    CHECK(cluster.rank(0).offer->source == RestoreSource::own_memory);
  }
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("copies: a restored step has its own copies again after a loss", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB", copies());
  cluster.commit(Step{5});
  cluster.lose("B");
  cluster.begin("AACC", copies());
  cluster.check_restored(Step{5}, 4);
  CHECK(
      cluster.pass_until([&] { return cluster.status("A").at("steps").at(0).at("copies") == 2; }));
}

TEST_CASE("copies: damage in one part is filled from its copy", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB", copies());
  cluster.commit(Step{5});
  cluster.damage(1);
  cluster.damage(2);
  cluster.begin("AABB", copies());
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("copies: when all memory is lost the same ranks restore from storage", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAB", copies("/scratch"));
  cluster.store(Step{5});
  cluster.lose("A");
  cluster.lose("B");
  cluster.begin("AAB", copies("/scratch"));
  cluster.check_restored(Step{5}, 3);
  CHECK(cluster.rank(0).offer->source == RestoreSource::storage);
  CHECK(cluster.rank(0).offer->source_name == "storage");
}

TEST_CASE("copies: a step with a damaged file gives way to the one before it", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAB", copies("/scratch"));
  for (const std::uint64_t step : {5, 6}) {
    cluster.store(Step{step});
  }
  cluster.lose("A");
  cluster.lose("B");
  cluster.rot("/scratch/step-000000006/rank-00001.safetensors");
  cluster.begin("AAB", copies("/scratch"));
  cluster.check_restored(Step{5}, 3);
}

TEST_CASE("copies: a shard damaged in all memory comes from storage", "[unit][node]") {
  Cluster cluster;
  Rules rules = copies("/scratch");
  rules.replicas = 1;
  cluster.begin("AAB", rules);
  cluster.store(Step{5});
  cluster.damage(1);
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{5}, 3);
}

TEST_CASE("copies: a part that is damaged everywhere is not restored", "[unit][node]") {
  Cluster cluster;
  Rules rules = copies();
  rules.replicas = 1;
  cluster.begin("AAB", rules);
  cluster.commit(Step{5});
  cluster.damage(1);
  cluster.ask("AAB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().code() == Errc::corruption);
}

TEST_CASE("copies: of what each rank captured itself, the copy in own memory is read",
          "[unit][node]") {
  Rules rules = copies();
  rules.captures_all = rules.is_frozen = true;  // In small Chunks.
  rules.replicas = 1;
  Cluster cluster;
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.limit_streams(4 * KiB);
  const Time begin = cluster.now();
  cluster.begin("BA", rules);
  cluster.check_restored(Step{5}, 4);
  CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);  // The items of rank 0.
  CHECK(cluster.now() - begin < std::chrono::seconds(15));             // All would take 30.
}

TEST_CASE("copies: a copy that is damaged everywhere gives way to that of another rank",
          "[unit][node]") {
  Rules rules = copies();
  rules.captures_all = rules.is_frozen = true;
  rules.replicas = 1;
  Cluster cluster;
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.damage(2);
  cluster.begin("BA", rules);
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("copies: the room for all of the tensor is given back", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAAA", copies());
  cluster.commit(Step{5});
  const auto before = cluster.status("A").at("slot_bytes");
  cluster.begin("AAAA", copies());
  cluster.check_restored(Step{5}, 4);
  cluster.commit(Step{6});
  CHECK(cluster.status("A").at("slot_bytes") == before);
}

TEST_CASE("copies: without room for all of the tensor the error has the numbers", "[unit][node]") {
  Cluster cluster;
  Rules rules = copies();
  rules.budget = 400 * KiB;  // Of four ranks: two Slots of a quarter each.
  cluster.begin("AAAA", rules);
  cluster.commit(Step{5});
  cluster.ask("AAAA", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().message().find("KiB") != std::string::npos);
  rules.are_copies = false;  // Nothing is lost: each has its part again.
  cluster.begin("AAAA", rules);
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("copies: each rank's own state comes back to it", "[unit][node]") {
  Cluster cluster;
  Rules rules = copies();
  rules.has_whole_tensors = true;
  rules.joins_shards = GENERATE(false, true);
  cluster.begin("AAB", rules);
  cluster.commit(Step{5});
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{5}, 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto& tensors = cluster.rank(rank).whole_tensors;
    REQUIRE(tensors.size() == 1);
    CHECK(tensors.begin()->first == fmt::format("of rank {}", rank));
    CHECK(tensors.begin()->second == std::vector<std::uint32_t>(256, 1000 * rank + 7));
  }
}

TEST_CASE("copies: ranks that captured all of it themselves restore it as they saved it",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("A", copies());
  cluster.commit(Step{5});
  cluster.begin("A", copies());
  cluster.check_restored(Step{5}, 1);
  CHECK(cluster.rank(0).fillings.empty());  // It was offered where it lay.
}

}  // namespace ckpt::node
