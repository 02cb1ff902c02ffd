// ShardCopies: the files of one rank's shard in one place or in several, read as one: each Chunk
// comes from the first place that has it good.
//
// All places hold the same record, whose checksums say which Chunks are good. So copies that are
// damaged in different Chunks give one good shard.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/shard_files.hpp"

namespace ckpt::storage {

// StepCopy: one copy of a checkpoint.
struct StepCopy {
  std::string directory;  // Marked (Site::at).
  std::shared_ptr<const format::Manifest> manifest;
};
// True if both are the same save of the same step, wherever they lie.
bool is_same_save(const format::Manifest& one, const format::Manifest& other);

// The error that a reader of several copies reports: that of one which could not be read, since it
// may be good; else the first one. `errors` is not empty.
Error most_telling(std::vector<Error> errors);

class ShardCopies {
 public:
  // The nearest place comes first. Errors: as ShardFiles::open, if no place can be opened.
  static Task<std::shared_ptr<ShardCopies>> open(os::FileSystem& files,
                                                 std::vector<ShardPlace> places,
                                                 std::shared_ptr<const format::ShardRecord> record);
  Task<void> close();

  // As ShardFiles::read_chunk. Errors: as there, if no place has the Chunk good.
  Task<void> read_chunk(std::size_t index, std::span<std::byte> bytes, const TransferHooks& hooks);
  Task<void> read_chunk(std::size_t index, std::span<std::byte> bytes, const TransferHooks& hooks,
                        ChunkCheck check);

  const format::ShardRecord& record() const { return opened_.front()->record(); }
  std::span<const format::Extent> members() const { return opened_.front()->members(); }

 private:
  ShardCopies() = default;

  std::vector<std::shared_ptr<ShardFiles>> opened_;  // Never empty.
  std::vector<Error> unopened_;
};

// The same for what describes the shard of a rank. `copies` is not empty. Errors: those of
// read_record (part_reader.hpp).
Task<std::shared_ptr<const format::ShardRecord>> read_record_of(os::FileSystem& files,
                                                                std::vector<StepCopy> copies,
                                                                std::uint32_t rank);
// The bytes of its part, as the seal in the first manifest says.
Task<std::vector<std::byte>> read_part_of(os::FileSystem& files, std::vector<StepCopy> copies,
                                          std::uint32_t rank);
// Where its files lie.
std::vector<ShardPlace> places_of(const std::vector<StepCopy>& copies, std::uint32_t rank);

}  // namespace ckpt::storage
