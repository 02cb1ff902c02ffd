// Goal:   a reader that joins shards looks at many of them at a time, and no more than the limit.
// Method: a source of 40 shards whose looks all wait for one another.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "base/clock.hpp"
#include "format/piece.hpp"
#include "gather/wanted_shard.hpp"
#include "support/fake_clock.hpp"
#include "support/pending.hpp"

namespace ckpt::gather {
namespace {

constexpr std::uint32_t ranks = 40;

class SlowSource final : public ShardSource {
 public:
  explicit SlowSource(Clock& clock) : clock_(clock) {}

  std::uint32_t shard_count() const override { return ranks; }
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string>) override {
    most = std::max(most, ++under_way);
    // The last ones are the first to come.
    CKPT_CO_CHECK(co_await sleep_until(clock_, clock_.after(std::chrono::seconds(ranks - rank))));
    --under_way;
    ++looks;
    Excerpt excerpt;
    const auto record = record_of(rank);
    excerpt.tensors = record->layout.tensors;
    excerpt.record = record;
    co_return excerpt;
  }
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override {
    co_return record_of(rank);
  }
  Task<void> read(std::shared_ptr<const format::ShardRecord>, std::vector<std::size_t>, ChunkSink,
                  const storage::TransferHooks&) override {
    co_return fail(Errc::unsupported, "nothing is read here");
  }

  std::uint32_t most = 0;
  std::uint32_t looks = 0;
  std::uint32_t under_way = 0;

 private:
  // Each has a row of "divided"; all have "in all" whole, and rank 30 alone has "single" whole.
  static std::shared_ptr<const format::ShardRecord> record_of(std::uint32_t rank) {
    std::vector<format::TensorSpec> specs;
    Piece row;
    row.global_shape = {ranks, 4};
    row.offset = {rank, 0};
    specs.push_back({"divided", DType::u8, {1, 4}, "", "", row});
    specs.push_back({"in all", DType::u8, {4}, "", "", std::nullopt});
    if (rank == 30) specs.push_back({"single", DType::u8, {4}, "", "", std::nullopt});
    auto record = std::make_shared<format::ShardRecord>();
    record->job = "job";
    record->id = {{1, Step{5}}, rank};
    record->world_size = ranks;
    record->layout = format::make_layout(specs, rank, 0).value();
    record->bytes = format::covered_bytes(record->layout, 0);
    record->chunk_bytes = 4096;
    return record;
  }

  Clock& clock_;
};

}  // namespace

TEST_CASE("many looks: a reader that joins shards looks at many at a time", "[unit][gather]") {
  asio::io_context context;
  test::FakeClock clock(context);
  SlowSource source(clock);
  ShardWish wish;
  wish.joins_shards = true;
  for (const char* const name : {"divided", "in all", "single", "nowhere"})
    wish.tensors.push_back({name, DType::u8, {4}, "", "", std::nullopt});
  auto shaped =
      test::finish(clock, test::start(context, shape_shard(source, {0, ranks}, std::move(wish))));
  REQUIRE(shaped);
  CHECK(source.looks == ranks);
  CHECK(source.most == looks_in_flight);
  // What several ranks have whole is its own, whoever was looked at first.
  std::vector<std::string> names;
  for (const auto& tensor : shaped->record.layout.tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  CHECK(names == std::vector<std::string>{"divided", "in all", "single"});
  CHECK(shaped->whole_tensors.contains("in all"));
  CHECK_FALSE(shaped->whole_tensors.contains("single"));
}

}  // namespace ckpt::gather
