// CheckpointMaker: small shards with true records, for the tests of what stores and serves them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "format/metrics.hpp"
#include "format/safetensors_header.hpp"
#include "format/shard_record.hpp"
#include "os/file_span.hpp"

namespace ckpt::test {

struct MadeShard {
  std::shared_ptr<const format::ShardRecord> record;
  std::shared_ptr<std::vector<std::byte>> bytes;  // The Slot.

  std::vector<os::FileSpan> slot() const {
    os::FileSpan span;
    span.bytes = *bytes;
    return {span};
  }
};

struct ShardWish {
  std::string job = "job";
  format::RunId run{1, 2};
  format::StepId at;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t tensor_bytes = 5'000;  // One of the two tensors has so many.
  std::uint64_t blob_bytes = 100;      // 0: a Layout without blobs.
  std::uint64_t chunk_bytes = page_bytes;
  DType dtype = DType::u8;  // The same one's.
  bool is_regular = false;  // Its bytes repeat, so that they can be packed.
  std::string metrics;      // The bytes of a blob for them; empty: there is none.
};

inline void checksum_chunks(format::ShardRecord& record, std::span<const std::byte> slot) {
  record.chunk_crcs.assign(div_ceil(record.bytes, record.chunk_bytes), 0);
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
    const format::Extent chunk = record.chunk(index);
    record.chunk_crcs[index] = crc32(slot.subspan(chunk.offset, chunk.bytes));
  }
}

// The same wish makes the same bytes; another step, timeline or rank makes others.
inline MadeShard make_shard(const ShardWish& wish) {
  std::vector<format::TensorSpec> tensors(2);
  tensors[0].name = "weights";
  tensors[0].dtype = wish.dtype;
  tensors[0].shape = {static_cast<std::int64_t>(wish.tensor_bytes / size_of(wish.dtype))};
  tensors[1].name = "bias";
  tensors[1].shape = {16};
  auto layout = format::make_layout(tensors, wish.rank, wish.blob_bytes);
  CKPT_ASSERT(layout.has_value());
  auto record = std::make_shared<format::ShardRecord>();
  record->job = wish.job;
  record->run = wish.run;
  record->id.at = wish.at;
  record->id.rank = wish.rank;
  record->world_size = wish.world_size;
  record->layout = std::move(layout).value();
  record->model = format::fingerprint(record->layout);
  record->blob_bytes = wish.blob_bytes;
  record->bytes = format::covered_bytes(record->layout, wish.blob_bytes);
  record->chunk_bytes = wish.chunk_bytes;

  auto slot = std::make_shared<std::vector<std::byte>>(record->layout.slot_bytes);
  Random random(number(wish.at.step) * 1'000'003 + wish.at.timeline * 101 + wish.rank);
  const auto members = format::member_extents(*record);
  for (const format::Extent& member : members) {
    std::uint64_t left = 0;
    for (std::uint64_t at = member.offset; at < member.end(); at += left) {
      const std::uint64_t word = random.next();
      left = std::min<std::uint64_t>(sizeof word, member.end() - at);
      std::memcpy(slot->data() + at, &word, left);
    }
  }
  if (wish.is_regular) {
    const format::Extent tensor = record->layout.tensors[0].extent;
    for (std::uint64_t index = 0; index < tensor.bytes; index += 2)
      (*slot)[tensor.offset + index] = static_cast<std::byte>(index / 1000);
  }
  format::HeaderFacts facts;
  facts.job = wish.job;
  facts.run = to_hex(wish.run);
  facts.timeline = wish.at.timeline;
  facts.step = wish.at.step;
  facts.rank = wish.rank;
  facts.world_size = wish.world_size;
  const auto header = format::render_header(record->layout, facts);
  CKPT_ASSERT(header.has_value());
  std::memcpy(slot->data(), header->data(), header->size());
  if (!wish.metrics.empty()) {  // Not at the beginning of its file.
    const format::Extent blob{members.back().offset + 10, wish.metrics.size()};
    CKPT_ASSERT(blob.end() <= members.back().end());
    record->blobs = {blob};
    record->blob_names = {std::string(format::metrics_blob_name)};
    std::memcpy(slot->data() + blob.offset, wish.metrics.data(), blob.bytes);
  }
  checksum_chunks(*record, *slot);
  return MadeShard{record, slot};
}

}  // namespace ckpt::test
