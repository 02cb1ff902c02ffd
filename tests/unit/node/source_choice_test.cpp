// Goal:   a restore from storage alone reads no memory, one from memory alone reads no shard from
//         storage, and what the other place has that is newer is abandoned as by a restore by
//         number.
// Method: whole engines with disks in memory: one rank whose steps are in both places, and ranks
//         whose shards are put together. The source of each offer is looked at; memory is damaged,
//         or files are refused, to see that nobody minds or that the restore fails.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "support/captured_log.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {
namespace {

using test::Cluster;
using test::Rules;

struct Chooser : test::OneRank {
  explicit Chooser(test::MemoryDisk& used) : OneRank(used, 30 * KiB, test::small_chunks()) {
    verifies_offers = true;
    request.save_storage_interval.steps = 2;
    REQUIRE(begin_fresh());
    for (const std::uint64_t step : {1, 2}) capture_committed(Step{step});
    REQUIRE(pass_until([&] { return durable == Step{2}; }));
  }
  void capture_committed(Step step) {
    REQUIRE(pass_until([&] { return !granted.empty(); }));
    capture(step);
    REQUIRE(pass_until([&] { return committed == step; }));
  }
  void offered(control::Offer offer) override {
    sources.push_back(offer.source);
    OneRank::offered(std::move(offer));
  }
  // The step that was restored; none: it failed.
  std::optional<Step> restore(SourceChoice source, std::optional<Step> wanted = std::nullopt) {
    sources.clear();
    answer.reset();
    granted.clear();  // It may fill any of them.
    committed = Step{};
    control::AskRestore asked{1, wanted};
    asked.source = source;
    REQUIRE(engine->call(session, std::move(asked)));
    REQUIRE(pass_until([this] { return answer.has_value(); }));
    CHECK_FALSE(is_wrong);
    if (!answer->restored) return std::nullopt;
    return answer->restored->step;
  }
  nlohmann::json restored() const {
    return nlohmann::json::parse(engine->status_json())["jobs"][0]["ranks"][0]["restored"];
  }
  void damage_memory() { bytes_of(filling)[small_offset] ^= std::byte{1}; }
  std::string error() const {
    return answer->result ? std::string() : answer->result.error().message();
  }

  static constexpr std::size_t small_offset = 3 * test::small_chunk_bytes;  // Not the first Chunk.
  std::vector<RestoreSource> sources;  // Those of the offers since it asked.
};

struct ChooserOnDisk {
  ChooserOnDisk() { disk.put_directory("/scratch"); }
  test::MemoryDisk disk{1};
};

using Sources = std::vector<RestoreSource>;

Rules copies_from(SourceChoice source) {
  Rules rules;
  rules.directory = "/scratch/job";
  rules.are_copies = true;
  rules.source = source;
  return rules;
}

}  // namespace

TEST_CASE("source choice: storage gives its newest step, and the newer one in memory is abandoned",
          "[unit][node]") {
  ChooserOnDisk place;
  Chooser rank(place.disk);
  rank.capture_committed(Step{3});
  REQUIRE(rank.restore(SourceChoice::storage) == Step{2});
  CHECK(rank.sources == Sources{RestoreSource::storage});
  CHECK(rank.answer->newest_seen == Step{3});
  CHECK(rank.answer->timeline == 2);
  // Step 3 of before is no more, in memory neither.
  CHECK(rank.restore(SourceChoice::any, Step{3}) == std::nullopt);
  REQUIRE(rank.restore(SourceChoice::any) == Step{2});
  // Training goes on from there.
  rank.capture_committed(Step{3});
  REQUIRE(rank.restore(SourceChoice::any) == Step{3});
}

TEST_CASE("source choice: the status says what came from storage, also of a restore in two parts",
          "[unit][node]") {
  ChooserOnDisk place;
  Chooser rank(place.disk);
  CHECK(rank.restored().is_null());
  REQUIRE(rank.restore(SourceChoice::memory) == Step{2});
  CHECK(rank.restored()["source"] == "own_memory");
  CHECK(rank.restored()["bytes_from_storage"] == 0);
  REQUIRE(rank.restore(SourceChoice::storage) == Step{2});
  const auto stored = rank.restored();
  CHECK(stored["step"] == 2);
  CHECK(stored["source"] == "storage");
  CHECK(stored["bytes"] > 0);
  CHECK(stored["bytes_from_storage"] == stored["bytes"]);
  REQUIRE(rank.restore(SourceChoice::any) == Step{2});
  CHECK(rank.restored() == stored);
  rank.capture_committed(Step{3});
  REQUIRE(rank.restore(SourceChoice::any) == Step{3});
  CHECK(rank.restored()["source"] == "own_memory");
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::StartFresh{2, false, true}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  CHECK(rank.restored().is_null());
}

TEST_CASE("source choice: storage is read though memory has the step", "[unit][node]") {
  ChooserOnDisk place;
  Chooser rank(place.disk);
  const bool is_damaged = GENERATE(false, true);
  if (is_damaged) rank.damage_memory();
  REQUIRE(rank.restore(SourceChoice::storage) == Step{2});
  CHECK(rank.sources == Sources{RestoreSource::storage});
  CHECK(rank.offers_refused == 0);
  CHECK(rank.answer->reason.find("storage alone was asked for") != std::string::npos);
}

TEST_CASE("source choice: memory is enough, though no file can be read", "[unit][node]") {
  ChooserOnDisk place;
  Chooser rank(place.disk);
  place.disk.set_hook([](std::string_view verb, const std::string& path) {
    return verb == "read" && path.find("rank-00000") != std::string::npos ? EIO : 0;
  });
  REQUIRE(rank.restore(SourceChoice::memory) == Step{2});
  CHECK(rank.sources == Sources{RestoreSource::own_memory});
}

TEST_CASE("source choice: damaged memory is not mended from storage, which is named",
          "[unit][node]") {
  ChooserOnDisk place;
  const test::CapturedLog quiet(LogLevel::error);
  Chooser rank(place.disk);
  rank.damage_memory();
  SECTION("memory alone") {
    CHECK(rank.restore(SourceChoice::memory, Step{2}) == std::nullopt);
    CHECK(rank.sources == Sources{RestoreSource::own_memory});
    CHECK(rank.answer->result.error().code() == Errc::unavailable);
    CHECK(rank.error().find("with storage, step 2 can be restored") != std::string::npos);
    REQUIRE(rank.restore(SourceChoice::any) == Step{2});  // It did no harm.
  }
  SECTION("anything") {
    CHECK(rank.restore(SourceChoice::any, Step{2}) == Step{2});
  }
}

TEST_CASE("source choice: what is put together comes from the place that was chosen",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", copies_from(SourceChoice::any));
  cluster.store(Step{5});
  const SourceChoice source = GENERATE(SourceChoice::memory, SourceChoice::storage);
  const bool is_stored = source == SourceChoice::storage;
  if (is_stored) cluster.damage(0);  // Nobody looks at it.
  cluster.begin("AB", copies_from(source));
  cluster.check_restored(Step{5}, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(cluster.rank(rank).offer);
    CHECK((cluster.rank(rank).offer->source == RestoreSource::storage) == is_stored);
  }
}

TEST_CASE(
    "source choice: what memory has lost is not read from storage for a shard that is put "
    "together",
    "[unit][node]") {
  const test::CapturedLog quiet(LogLevel::error);
  Cluster cluster;
  cluster.begin("AB", copies_from(SourceChoice::any));
  cluster.store(Step{5});
  cluster.damage_replicas(0);
  cluster.damage(0);
  const SourceChoice source = GENERATE(SourceChoice::memory, SourceChoice::any);
  cluster.ask("AB", copies_from(source));
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  if (source == SourceChoice::any) return cluster.check_restored(Step{5}, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto& answer = cluster.rank(rank).answer;
    CHECK(answer->restored == std::nullopt);
    REQUIRE_FALSE(answer->result);
    CHECK(answer->result.error().code() == Errc::unavailable);
  }
}

}  // namespace ckpt::node
