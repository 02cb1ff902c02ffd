// PackedWriter, PackedReader: one packed file (format/frame_table.hpp), frame by frame.
//
// Threads: one executor; packing and opening run on the hooks' Compute.
// Memory:  for each frame in flight a buffer for it, and one for its byte planes: two Chunks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "format/shard_part.hpp"
#include "os/file_system.hpp"
#include "storage/frame_codec.hpp"
#include "storage/transfer_hooks.hpp"

namespace ckpt::storage {

// Whether members of this kind are packed. Blobs are small, and read without their part.
bool is_packed_kind(format::MemberKind kind);

// The widths of the numbers that most bytes of each frame belong to.
std::vector<std::uint8_t> frame_widths(const format::ShardRecord& record, std::size_t member);

class PackedWriter {
 public:
  // `widths` has one entry for each frame of the shape. The file is new, and outlives this.
  PackedWriter(os::File& file, format::PackedShape shape, std::vector<std::uint8_t> widths,
               Compression compression);

  // Reserves what the file takes if nothing shrinks.
  Task<void> allocate();
  // `pieces` are the frame's bytes in the Slot, and last until the file is closed; `crc` is theirs.
  // Each frame is written once; several may be at the same time, in any order.
  Task<void> write(std::size_t frame, std::vector<std::span<const std::byte>> pieces, Crc32 crc,
                   const TransferHooks& hooks);
  // Called after all frames: writes the table, and cuts the file to its size.
  Task<void> finish();

  // After finish().
  const format::PackedFile& packed() const { return packed_; }
  Crc32 crc() const { return crc_; }

 private:
  struct Written {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  // With the zeros behind the frame.
    Crc32 crc = 0;
  };
  std::uint64_t take_room(std::uint64_t bytes);
  Task<void> write_as_it_is(std::size_t frame, std::vector<std::span<const std::byte>> pieces,
                            Crc32 crc, const TransferHooks& hooks);

  os::File& file_;
  const format::PackedShape shape_;
  const std::vector<std::uint8_t> widths_;
  const Compression compression_;
  std::uint64_t next_ = 0;  // The next frame's place.
  std::vector<format::Frame> frames_;
  std::vector<Written> written_;  // By frame.
  format::PackedFile packed_;
  Crc32 crc_ = 0;
};

class PackedReader {
 public:
  // Reads the table, and checks it. The file outlives this. Errors: corruption, io.
  static Task<std::unique_ptr<PackedReader>> open(os::File& file, format::StoredFile stored,
                                                  format::PackedShape shape);

  // `target` has the size of the frame's bytes in the Slot, and is filled with what nobody has
  // verified yet. Errors: corruption, unsupported, io.
  Task<void> read(std::size_t frame, std::span<std::byte> target, Compute* compute);

  const format::PackedShape& shape() const { return shape_; }
  const std::vector<format::Frame>& frames() const { return frames_; }

 private:
  PackedReader(os::File& file, format::PackedShape shape, std::vector<format::Frame> frames,
               std::uint64_t frames_end);

  os::File& file_;
  const format::PackedShape shape_;
  const std::vector<format::Frame> frames_;
  const std::uint64_t frames_end_;
};

}  // namespace ckpt::storage
