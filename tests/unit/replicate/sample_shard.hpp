// SampleShard: a shard with bytes from a seed and a record that fits them.
//
// Threads: one.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "base/random.hpp"
#include "base/units.hpp"
#include "replicate/transfer.hpp"

namespace ckpt::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_from(std::uint64_t seed, std::size_t size) {
  Random random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// A shard of `pages` pages, the first of them the file's header.
struct Shard {
  explicit Shard(std::size_t pages, std::uint64_t chunk_bytes = page_bytes,
                 std::uint64_t seed = 1) {
    format::TensorSpec tensor;
    tensor.name = "weight";
    tensor.shape = {static_cast<std::int64_t>((pages - 1) * page_bytes)};
    auto layout = format::make_layout(std::vector<format::TensorSpec>{tensor}, 0, 0);
    REQUIRE(layout);
    auto made = std::make_shared<format::ShardRecord>();
    made->job = "gpt2";
    made->id.at.timeline = 1;
    made->id.at.step = Step{900};
    made->layout = *layout;
    made->bytes = layout->slot_bytes;
    made->chunk_bytes = chunk_bytes;
    REQUIRE(made->bytes == pages * page_bytes);
    memory = std::make_shared<Bytes>(bytes_from(seed, made->bytes));
    for (std::size_t at = 0; at < memory->size(); at += chunk_bytes)
      made->chunk_crcs.push_back(crc32(
          std::span(*memory).subspan(at, std::min<std::size_t>(chunk_bytes, made->bytes - at))));
    REQUIRE(validate(*made));
    record = made;
    digest = digest_of(*record);
  }

  // A later step of the same rank, with the same bytes so far.
  Shard next() const {
    Shard later(*this);
    later.record = std::make_shared<format::ShardRecord>(*record);
    later.record->id.at.step = Step{number(record->id.at.step) + 1};
    later.memory = std::make_shared<Bytes>(*memory);
    later.digest = digest_of(*later.record);
    return later;
  }
  // Changes a byte, and the record with it.
  void change(std::size_t at) {
    (*memory)[at] ^= std::byte{1};
    const std::size_t chunk = at / record->chunk_bytes;
    const format::Extent extent = record->chunk(chunk);
    record->chunk_crcs[chunk] = crc32(std::span(*memory).subspan(extent.offset, extent.bytes));
    digest = digest_of(*record);
  }

  replicate::SealedShard source() const {
    replicate::SealedShard source;
    source.record = record;
    os::FileSpan span;
    span.bytes = *memory;
    source.spans.push_back(span);
    source.lease = memory;
    return source;
  }

  std::shared_ptr<format::ShardRecord> record;
  std::shared_ptr<Bytes> memory;
  Digest digest;
};

}  // namespace ckpt::test
