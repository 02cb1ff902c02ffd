// Transfer: sources, bitmaps and limits, for both sides of a shard's transfer over the network.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/compute.hpp"
#include "base/throttle.hpp"
#include "base/units.hpp"
#include "format/shard_record.hpp"
#include "os/file_span.hpp"

namespace ckpt::replicate {

// SealedShard: the bytes of one sealed shard, readable for as long as it is held.
struct SealedShard {
  std::shared_ptr<const format::ShardRecord> record;
  std::vector<os::FileSpan> spans;    // The Slot's `record->bytes`, in order.
  std::shared_ptr<const void> lease;  // Keeps the Slot from being reused; may be null.
};

// Its bytes of one Chunk, in pieces that a stream sends at a time: a Chunk may cross the border of
// two segments.
std::vector<os::FileSpan> parts_of(const SealedShard& source, std::size_t chunk);

// CopyName: names one copy of a shard on the wire, 36 bytes.
struct CopyName {
  static constexpr std::size_t encoded_bytes = 8 + 8 + 4 + 16;
  format::ShardId shard;
  Digest digest;  // Its record's.
};
std::vector<std::byte> encode(const CopyName& name);
// Errors: corruption (another length).
Result<CopyName> decode_copy_name(std::span<const std::byte> bytes);

// ChunkSet: the Chunks of a shard that are present and verified.
class ChunkSet {
 public:
  explicit ChunkSet(std::size_t size = 0) : bits_(size, false) {}

  std::size_t size() const { return bits_.size(); }
  std::size_t count() const { return count_; }
  bool is_full() const { return count_ == bits_.size(); }
  bool contains(std::size_t index) const { return bits_.at(index); }
  // Returns true if it was not there before.
  bool insert(std::size_t index);

  // A u32 size, then one bit for each, lowest bit of each byte first, padded with zeros.
  std::vector<std::byte> encode() const;
  // Errors: corruption (another size, or bits beyond it).
  static Result<ChunkSet> decode(std::span<const std::byte> bytes, std::size_t size);

 private:
  std::vector<bool> bits_;
  std::size_t count_ = 0;
};

// Destination: where the Chunks of a shard go: to their places in one memory that is laid out as
// the shard, or each elsewhere.
class Destination {
 public:
  using Places = std::vector<std::span<std::byte>>;
  using PlacesOf = std::function<Places(std::size_t chunk)>;
  using Placed = std::function<Task<void>(std::size_t chunk, std::vector<Crc32> crcs)>;

  Destination(std::span<std::byte> shard) : shard_(shard) {}  // A memory is one.
  // `places` returns memory for all bytes of the Chunk, in their order; the same if it is asked
  // again, since a Chunk that has not come whole is read anew. `placed` gets the checksum of each
  // place once the Chunk is verified there, and ends before on_chunk.
  explicit Destination(PlacesOf places, Placed placed = nullptr)
      : places_(std::move(places)), placed_(std::move(placed)) {}

  Places places(std::size_t index, format::Extent extent) const;
  // Errors: those of `placed`.
  Task<void> placed(std::size_t index, std::vector<Crc32> crcs) const;
  bool has_room_for(std::uint64_t bytes) const { return places_ || shard_.size() >= bytes; }

 private:
  std::span<std::byte> shard_;
  PlacesOf places_;
  Placed placed_;
};

// Bytes sent and not yet acknowledged: bandwidth times delay of a fast, long path.
inline constexpr std::uint64_t window_bytes_default = 64 * MiB;

// The unit of the stall deadline: each piece gets the whole time.
inline constexpr std::size_t piece_bytes = 256 * KiB;

struct TransferOptions {
  std::uint64_t timeline = 0;                         // Ours; part of every frame we send.
  Time deadline = no_deadline;                        // For the whole transfer.
  Duration stall = std::chrono::seconds(10);          // For each next 256 KiB or frame.
  std::uint64_t window_bytes = window_bytes_default;  // At least one Chunk is always sent.
  std::shared_ptr<Throttle> throttle;                 // Limits sending; null: no limit.
  Compute* compute = nullptr;                         // Computes the checksums.
  // The digest of the whole record, for a fetch whose record is here without its tensors; none: it
  // is computed.
  std::optional<Digest> record_digest = std::nullopt;
  // Called for every Chunk verified at its target; at a sender late, or not at all.
  std::function<void(std::size_t chunk)> on_chunk;
  // Called at a sender instead, for every Chunk that it named and did not send.
  std::function<void(std::size_t chunk)> on_same;
};

}  // namespace ckpt::replicate
