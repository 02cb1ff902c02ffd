// Goal:   the records of a large job's shards do not fill the memory of a node that restores from
//         them, and those of a small job are fetched once.
// Method: records by hand, and a limit that some of them fit.
#include "node/kept_records.hpp"

#include <catch2/catch.hpp>

namespace ckpt::node {
namespace {

using format::ShardRecord;

std::shared_ptr<const ShardRecord> record_of(std::uint32_t rank, std::size_t tensors) {
  std::vector<format::TensorSpec> specs(tensors);
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    specs[tensor].name = "layers." + std::to_string(tensor) + ".weight";
    specs[tensor].dtype = DType::f32;
    specs[tensor].shape = {1024};
  }
  auto layout = format::make_layout(specs, rank, 64);
  REQUIRE(layout);
  ShardRecord record;
  record.job = "job";
  record.run = {1, 2};
  record.id = {{3, Step{4}}, rank};
  record.world_size = 64;
  record.layout = std::move(*layout);
  record.model = format::fingerprint(record.layout);
  record.blob_bytes = 8;
  record.blobs = {{record.layout.members.back().extent.offset, 8}};
  record.blob_names = {"loader"};
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = 64 * KiB;
  record.chunk_crcs.assign(div_ceil(record.bytes, record.chunk_bytes), rank);
  return std::make_shared<const ShardRecord>(std::move(record));
}

}  // namespace

TEST_CASE("kept records: those that came first stay, and the others do not fit", "[unit][node]") {
  const std::uint64_t each = memory_of(*record_of(0, 100));
  KeptRecords records(5 * each + each / 2);
  for (int look = 0; look < 2; ++look) {
    for (std::uint32_t rank = 0; rank < 64; ++rank) {
      records.add(record_of(rank, 100));
      CHECK(records.bytes() >= each);
      CHECK(records.bytes() <= 5 * each + each / 2);
    }
  }
  for (std::uint32_t rank = 0; rank < 64; ++rank) {
    const auto kept = records.find(rank);
    CHECK((kept != nullptr) == (rank < 5));
    if (kept) CHECK(kept->id.rank == rank);
  }
  records.add(record_of(77, 1));  // A small one fits.
  CHECK(records.find(77) != nullptr);
}

TEST_CASE("kept records: a record takes no less than its tensors", "[unit][node]") {
  const std::uint64_t few = memory_of(*record_of(0, 10));
  const std::uint64_t many = memory_of(*record_of(0, 1000));
  CHECK(many - few > 990 * (sizeof(format::TensorPlace) + 8));
  CHECK(many - few < 990 * 1024);
}

TEST_CASE("kept records: without tensors a record differs in nothing else", "[unit][node]") {
  const auto record = record_of(7, 20);
  const auto frame = without_tensors(*record);
  CHECK(frame->layout.tensors.empty());
  CHECK(format::validate_frame(*frame));
  CHECK(format::member_extents(*frame) == format::member_extents(*record));
  ShardRecord again = *frame;
  again.layout.tensors = record->layout.tensors;
  CHECK(format::encode(again) == format::encode(*record));
  CHECK(again.layout == record->layout);
  CHECK(format::digest_of(again) == format::digest_of(*record));
}

}  // namespace ckpt::node
