// Goal:   a step that one number of ranks saved is restored by another one straight from memory:
//         each rank gets its part of the tensor, whoever had it, also after a loss, after damage
//         and twice in a row; the step stays until the new ranks have committed one of their own.
// Method: engines of several nodes on a simulated network. The ranks of each world divide one
//         tensor evenly; every number of an offer is compared with what was saved.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <regex>

#include "support/captured_log.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::numbers_in_all;
using test::Rules;

TEST_CASE("other world: any number of ranks gets its parts from memory", "[unit][node]") {
  const std::string places = GENERATE("A", "AB", "ABA", "AABBAB", "ABABABAB", "BBCA", "CDA");
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.begin(places);
  cluster.check_restored(Step{5}, 4);
  // They go on, and are restored as any other.
  cluster.commit(Step{6});
  const auto world_size = static_cast<std::uint32_t>(places.size());
  cluster.begin(places);
  cluster.check_restored(Step{6}, world_size);
}

TEST_CASE("other world: a lost node's shards come from its copies", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.lose("B");
  SECTION("on the node that is left") {
    cluster.begin("AAA");
  }
  SECTION("on a new node besides") {
    cluster.begin("CAC");
    CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);
    CHECK(cluster.rank(0).offer->source_name == "node A");
    CHECK(cluster.rank(1).offer->source == RestoreSource::own_memory);
  }
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("other world: it begins at once behind one that closed, with its ranks on other nodes",
          "[unit][node]") {
  Rules next;
  next.is_at_once = next.has_old_list = true;
  const std::string places = GENERATE("AAB", "BA", "BAA", "ABAB");
  Cluster cluster;
  cluster.begin("AB");
  cluster.commit(Step{5});
  cluster.close_world();
  CHECK(cluster.status("B")["ranks"].size() == 1);  // The closed one.
  cluster.begin(places, next);
  for (const char* node : {"A", "B"}) {
    const nlohmann::json status = cluster.status(node);
    for (const nlohmann::json& rank : status["ranks"]) CHECK(rank["attached"] == true);
  }
  cluster.commit(Step{6});
  cluster.close_world();
  cluster.ask("AB", next);
  CHECK(cluster.pass_until([&] { return cluster.have_answers(); }));
}

TEST_CASE("other world: damage in one copy is filled from another", "[unit][node]") {
  Rules rules;
  rules.is_frozen = GENERATE(false, true);  // With Chunks so small that they go to their places.
  Cluster cluster;
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.damage(1);
  cluster.damage(2);
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("other world: two copies on one node fill the damage of each other", "[unit][node]") {
  const auto [page_of_own, page_of_other] = GENERATE(std::pair(0u, 9u), std::pair(9u, 0u));
  const test::CapturedLog log(LogLevel::warning);
  Rules rules;
  rules.is_frozen = true;  // In Chunks of a page.
  Cluster cluster;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  cluster.lose("B");
  cluster.begin("AA", rules);  // Rank 1's shard comes into a Slot of its own, beside the copy.
  cluster.damage_replicas(1, page_of_other);
  cluster.damage(1, page_of_own);
  cluster.begin("A", rules);
  cluster.check_restored(Step{5}, 2);
  CHECK(cluster.rank(0).offer->source == RestoreSource::own_memory);
  CHECK_FALSE(log.has("not restored"));  // At the first attempt.
}

namespace {

// A page of the tensor of the only rank, where memory is damaged; and one where its file is, which
// lies in the part of rank 0.
Rules damage_of_two_ranks(Cluster& cluster, std::size_t page_in_memory, std::size_t page_of_file) {
  Rules rules;
  rules.directory = "/scratch";
  rules.is_frozen = true;  // In Chunks of a page.
  rules.replicas = 1;
  cluster.begin("A", rules);
  cluster.store(Step{5});
  cluster.damage(0, page_in_memory);
  cluster.disk().flip("/scratch/step-000000005/rank-00000.safetensors",
                      (1 + page_of_file) * page_bytes, 3);
  return rules;
}

}  // namespace

TEST_CASE("other world: what is good of a copy serves the others after one has put it aside",
          "[unit][node]") {
  const test::CapturedLog log(LogLevel::warning);
  Cluster cluster;
  SECTION("on the same node") {
    const auto [in_memory, of_file] = GENERATE(std::pair(3u, 20u), std::pair(20u, 3u));
    const Rules rules = damage_of_two_ranks(cluster, in_memory, of_file);
    cluster.begin("AA", rules);
  }
  SECTION("on another node") {
    const Rules rules = damage_of_two_ranks(cluster, 25, 3);
    cluster.begin("CCA", rules);
    CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);
  }
  SECTION("on another node, whose one rank wants what is good and what is not") {
    const Rules rules = damage_of_two_ranks(cluster, 3, 10);
    cluster.begin("CA", rules);
  }
  cluster.check_restored(Step{5}, 1);
  CHECK_FALSE(log.has("not restored"));  // At the first attempt.
  const auto slots = cluster.status("A").at("slots");
  for (const auto& slot : slots) CHECK(slot.at("state") != "quarantined");  // Not for training.
}

TEST_CASE("other world: ranks that declared copies take each Chunk from where it is good",
          "[unit][node]") {
  const test::CapturedLog log(LogLevel::warning);
  Rules rules;
  rules.is_frozen = rules.captures_all = true;
  rules.replicas = 1;
  Cluster cluster;
  cluster.begin("AA", rules);
  cluster.commit(Step{5});
  cluster.damage(0, 3);
  cluster.damage(1, 20);
  rules.captures_all = false;
  cluster.begin("AAA", rules);
  cluster.check_restored(Step{5}, 2);
  CHECK_FALSE(log.has("not restored"));
}

TEST_CASE("other world: damage in every copy is not served", "[unit][node]") {
  Rules rules;
  rules.is_frozen = GENERATE(false, true);
  Cluster cluster;
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.damage_replicas(1);
  cluster.damage(1);
  cluster.ask("AAB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  for (std::size_t rank = 0; rank < 3; ++rank) REQUIRE_FALSE(cluster.rank(rank).answer->result);
  // The second, where the first answer to come is that of a rank that found both put aside.
  const Error error = cluster.rank(0).answer->result.error();
  const bool is_loss = error.code() == Errc::corruption || error.code() == Errc::unavailable;
  CAPTURE(error.message());
  CHECK(is_loss);
  CHECK(error.message().find("no good copy is left") != std::string::npos);
  CHECK_FALSE(cluster.rank(0).offer);  // It wants what is damaged.
}

TEST_CASE("other world: what is damaged in every memory comes from storage", "[unit][node]") {
  Rules rules;
  rules.directory = "/scratch";
  rules.is_frozen = GENERATE(false, true);
  Cluster cluster;
  cluster.begin("AABB", rules);
  cluster.store(Step{5});
  cluster.damage_replicas(1);
  cluster.damage(1);
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{5}, 4);
  CHECK(cluster.rank(0).offer->source == RestoreSource::storage);
}

namespace {

// Rank 3's shard was on node B alone, and storage has the step.
Rules lose_one_of_two(Cluster& cluster, const std::string& places = "AAAB") {
  Rules rules;
  rules.directory = "/scratch";
  rules.replicas = 1;
  cluster.begin(places, rules);
  cluster.store(Step{5});
  cluster.lose("B");
  return rules;
}

constexpr std::uint64_t part_of_four = numbers_in_all / 4 * 4;  // Bytes.

}  // namespace

TEST_CASE("other world: what no memory has of a step comes from storage, and no more",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = lose_one_of_two(cluster);
  SECTION("by two ranks, of which one wants some of it") {
    cluster.begin("AA", rules);
    CHECK(cluster.rank(0).offer->source == RestoreSource::own_memory);
    CHECK(cluster.rank(0).offer->bytes_from_storage == 0);
    CHECK(cluster.rank(1).offer->source == RestoreSource::storage);
    CHECK(cluster.rank(1).offer->bytes_from_storage == part_of_four);
  }
  SECTION("by three, on a new node besides") {
    cluster.begin("CAC", rules);
    CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);
    CHECK(cluster.rank(1).offer->source == RestoreSource::own_memory);
    CHECK(cluster.rank(2).offer->source == RestoreSource::storage);
    CHECK(cluster.rank(2).offer->bytes_from_storage == part_of_four);
  }
  SECTION("by six, of which the last gets nothing else") {
    cluster.begin("ACACAC", rules);
    CHECK(cluster.rank(5).offer->source == RestoreSource::storage);
    // The blobs are those of rank 1.
    CHECK(cluster.rank(5).offer->bytes_from_storage == part_of_four * 2 / 3);
  }
  cluster.check_restored(Step{5}, 4);
  CHECK(cluster.status("A")["steps"][0]["level"] == "durable");
}

TEST_CASE("other world: a world that took some from storage may die before it commits",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = lose_one_of_two(cluster);
  cluster.begin("AAC", rules);
  cluster.begin("CA", rules);
  cluster.check_restored(Step{5}, 4);
  cluster.begin("AACC", rules);  // As many as saved it.
  cluster.check_restored(Step{5}, 4);
  cluster.begin("CCA", rules);
  cluster.commit(Step{6});
  cluster.begin("CA", rules);
  cluster.check_restored(Step{6}, 3);
}

TEST_CASE("other world: damage in memory, and a shard that storage alone has", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  rules.replicas = 1;
  cluster.begin("AAAB", rules);
  cluster.store(Step{5});
  cluster.damage(0);
  cluster.lose("B");
  cluster.begin("AAC", rules);
  cluster.check_restored(Step{5}, 4);
  CHECK(cluster.rank(0).offer->bytes_from_storage > 0);
  CHECK(cluster.rank(1).offer->bytes_from_storage == 0);
}

TEST_CASE("other world: damage on storage of a shard that no memory has ends the restore",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = lose_one_of_two(cluster);
  cluster.rot("/scratch/step-000000005/rank-00003.safetensors");
  cluster.ask("AC", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE_FALSE(cluster.rank(rank).answer->result);
    CHECK(cluster.rank(rank).answer->result.error().code() == Errc::corruption);
  }
}

TEST_CASE("other world: a step of the same number that was abandoned gives no bytes",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  rules.replicas = 1;
  cluster.begin("AAAB", rules);
  cluster.store(Step{5});
  cluster.store(Step{6});
  Rules older = rules;
  older.wanted = Step{5};
  cluster.begin("AAAB", older);
  cluster.commit(Step{6});  // Another timeline's, which is not stored.
  cluster.lose("B");
  cluster.ask("AA", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  // The newest that is whole is step 5, which memory has no part of.
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().code() == Errc::unsupported);
}

TEST_CASE("other world: the step stays until a newer one is committed", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.begin("ABA");
  cluster.capture(cluster.rank(0), Step{6});  // The others die before they capture it.
  cluster.begin("ABABA");
  cluster.check_restored(Step{5}, 4);
  cluster.commit(Step{6});
  cluster.begin("AB");
  cluster.check_restored(Step{6}, 5);
  CHECK(cluster.pass_until([&] {  // The surplus of the five ranks is given back.
    cluster.commit(Step{number(cluster.rank(0).committed) + 7});
    return cluster.status("A").at("slot_bytes") <= 2 * 2 * 3 * numbers_in_all * 4;
  }));
  CHECK(cluster.ranks_with_slots("A") == std::set<std::uint32_t>{0});
}

TEST_CASE("other world: Slots that hold two steps to keep are not in the way of a third world",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAA");
  cluster.commit(Step{5});
  cluster.begin("AABAA");
  cluster.capture(Step{6});  // They die before it has its copies: step 5 is the committed one.
  Rules rules;
  rules.is_at_once = true;
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{6}, 5);
  cluster.commit(Step{7});
  cluster.begin("AA");
  cluster.check_restored(Step{7}, 3);
}

TEST_CASE("other world: abandoned steps stay abandoned on a node that comes back", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.commit(Step{6});
  Rules older;
  older.wanted = Step{6};
  cluster.begin("A", older);  // B is away, and has a copy of all that four ranks saved.
  cluster.check_restored(Step{6}, 4);
  cluster.commit(Step{7});
  cluster.begin("AAB");
  cluster.check_restored(Step{7}, 1);
}

TEST_CASE("other world: a rank gets the whole tensors of the shards that nobody begins with",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = rules.joins_shards = true;
  cluster.begin("ABABA", rules);
  cluster.commit(Step{5});
  cluster.begin("AB", rules);
  cluster.check_restored(Step{5}, 5);
  using Numbers = std::map<std::string, std::vector<std::uint32_t>>;
  const auto of = [](std::uint32_t rank, const std::string& prefix = "") {
    return std::pair(fmt::format("{}of rank {}", prefix, rank),
                     std::vector<std::uint32_t>(256, 1000 * rank + 7));
  };
  CHECK(cluster.rank(0).whole_tensors ==
        Numbers{of(0), of(2, "libckpt.rank.2/"), of(4, "libckpt.rank.4/")});
  CHECK(cluster.rank(1).whole_tensors == Numbers{of(1), of(3, "libckpt.rank.3/")});
  cluster.begin("ABABABAB", rules);
  CHECK(cluster.rank(6).whole_tensors == Numbers{of(1)});
}

TEST_CASE("other world: a rank that chooses later gets a whole tensor that another one saved",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = rules.joins_shards = true;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  rules.stages = {1, 0};
  cluster.begin("AB", rules);
  CHECK(cluster.rank(0).whole_tensors.contains("of rank 1"));
  CHECK(cluster.rank(1).whole_tensors.contains("of rank 0"));
}

TEST_CASE("other world: tensors that no rank asks for are named, at once where one node has all",
          "[unit][node]") {
  const std::string ranks = GENERATE("A", "AAA", "AB");
  const bool has_whole_tensors = GENERATE(false, true);
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = true;
  cluster.begin(ranks == "A" ? "AB" : "A", rules);
  cluster.commit(Step{5});
  const test::CapturedLog log(LogLevel::warning);
  rules.has_whole_tensors = has_whole_tensors && ranks == "AAA";
  if (rules.has_whole_tensors) rules.joins_shards = true;  // An adapter looks at the names itself.
  cluster.begin(ranks, rules);
  cluster.check_restored(Step{5}, ranks == "A" ? 2 : 1);
  INFO(log.text());
  const bool is_named = log.has("asked for by no rank: \"of rank 0\"");
  CHECK(is_named == (ranks != "AB" && !rules.joins_shards));
  CHECK(log.has("\"of rank 1\"") == (ranks == "A"));
  const auto is_named_later = [&] { return log.has("saved by no rank: \"of rank 0\""); };
  CHECK_FALSE(is_named_later());
  cluster.commit(Step{6});
  CHECK(cluster.pass_until(is_named_later) == (ranks == "AB"));
}

TEST_CASE("other world: nothing is named where all tensors are saved again", "[unit][node]") {
  Cluster cluster;
  cluster.begin("A");
  cluster.commit(Step{5});
  const test::CapturedLog log(LogLevel::warning);
  cluster.begin("AB");
  cluster.commit(Step{6});
  CHECK_FALSE(cluster.pass_until([&] { return log.has("by no rank"); }));
}

TEST_CASE("other world: a tensor that several saved whole is nobody's to guess", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = true;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  cluster.ask("AAB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  const Status& result = cluster.rank(0).answer->result;
  REQUIRE_FALSE(result);
  CHECK(result.error().code() == Errc::invalid_argument);
  CHECK(result.error().message().find("of rank 2") != std::string::npos);
  cluster.begin("AB", rules);  // Nothing is lost.
  cluster.check_restored(Step{5}, 2);
}

TEST_CASE("other world: without room for both the error has the numbers", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.budget = 450 * KiB;  // For each node: enough for its half, in two Slots and two copies.
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  cluster.ask("A", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.rank(0).no_slots.has_value(); }));
  const Error& error = *cluster.rank(0).no_slots;
  INFO(error.message());
  CHECK(error.code() == Errc::exhausted);
  static const std::regex sums(
      "need ([0-9.]+) KiB, may use 450.0 KiB, of which ([0-9.]+) KiB are taken");
  const std::string text = error.message();
  std::smatch found;
  REQUIRE(std::regex_search(text, found, sums));
  const double wanted = std::stod(found[1]), taken = std::stod(found[2]);
  CHECK(wanted <= 450);
  CHECK(wanted + taken > 450);
  // One of its own Slots was free, and would have been given back.
  CHECK(taken * KiB + test::shard_bytes == cluster.status("A").at("slot_bytes"));
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().code() == Errc::exhausted);
  cluster.begin("AB", rules);
  cluster.check_restored(Step{5}, 2);
}

TEST_CASE("other world: where a record cannot be read no rank is offered other parts",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  rules.source = SourceChoice::storage;
  rules.captures_all = true;  // As many ranks, and rank 1 wants a copy of all of the tensor.
  cluster.end_world();
  int reads = 0;
  cluster.disk().set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_it = verb.starts_with("read") && path.ends_with("rank-00001.part");
    return is_it && reads++ == 0 ? EIO : 0;
  });
  cluster.ask("AB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  CHECK(reads > 0);
  const test::Trainer& wants_all = cluster.rank(1);
  const Status& result = wants_all.answer->result;
  INFO((result ? "restored" : result.error().message()));
  if (wants_all.offer) CHECK(wants_all.weight.size() == numbers_in_all);
  if (!result) CHECK(result.error().code() != Errc::invalid_argument);
  cluster.disk().set_hook({});
}

TEST_CASE("other world: a step in the memory of some nodes only is not taken for no step",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.replicas = 1;
  cluster.begin("ABC", rules);
  cluster.commit(Step{5});
  cluster.lose("B");
  cluster.ask("AC", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().code() == Errc::unsupported);
}

TEST_CASE("other world: a restored step is stored as its ranks saved it", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.begin("ABA", rules);
  cluster.check_restored(Step{5}, 4);
  const nlohmann::json step = cluster.status("A").at("steps").at(0);
  CHECK(step.at("saved_by") == 4);
  CHECK(step.at("ranks_in_memory") == 4);
  cluster.flush(Step{5});
  CHECK(cluster.pass_until(
      [&] { return cluster.status("A").at("steps").at(0).at("level") == "durable"; }));
}

}  // namespace ckpt::node
