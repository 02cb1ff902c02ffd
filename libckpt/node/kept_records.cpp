#include "node/kept_records.hpp"

#include "base/assert.hpp"

namespace ckpt::node {

using format::ShardRecord;

namespace {

// A tensor's shape, the numbers of its piece, and what the heap adds.
constexpr std::uint64_t numbers_bytes = 128;

}  // namespace

std::uint64_t memory_of(const ShardRecord& record) {
  std::uint64_t bytes = sizeof(ShardRecord) + record.chunk_crcs.size() * sizeof(Crc32);
  for (const format::TensorPlace& tensor : record.layout.tensors)
    bytes += sizeof(tensor) + tensor.name.size() + tensor.alias_of.size() + numbers_bytes;
  for (const std::string& name : record.blob_names)
    bytes += sizeof(name) + name.size() + sizeof(format::Extent);
  return bytes;
}

std::shared_ptr<const ShardRecord> without_tensors(const ShardRecord& record) {
  auto frame = std::make_shared<ShardRecord>();
  frame->job = record.job;
  frame->run = record.run;
  frame->id = record.id;
  frame->world_size = record.world_size;
  frame->model = record.model;
  frame->layout.members = record.layout.members;
  frame->layout.blob_capacity = record.layout.blob_capacity;
  frame->layout.slot_bytes = record.layout.slot_bytes;
  frame->layout.version = record.layout.version;
  frame->blob_bytes = record.blob_bytes;
  frame->blobs = record.blobs;
  frame->blob_names = record.blob_names;
  frame->bytes = record.bytes;
  frame->chunk_bytes = record.chunk_bytes;
  frame->chunk_crcs = record.chunk_crcs;
  return frame;
}

void KeptRecords::add(std::shared_ptr<const ShardRecord> record) {
  CKPT_ASSERT(record != nullptr);
  const std::uint64_t more = memory_of(*record);
  if (more > bytes_max_ - bytes_) return;
  const bool is_new = records_.emplace(record->id.rank, record).second;
  if (is_new) bytes_ += more;
  CKPT_ASSERT(bytes_ <= bytes_max_);
}

std::shared_ptr<const ShardRecord> KeptRecords::find(std::uint32_t rank) const {
  const auto kept = records_.find(rank);
  return kept == records_.end() ? nullptr : kept->second;
}

}  // namespace ckpt::node
