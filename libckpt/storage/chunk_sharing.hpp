// ChunkSharing: lets the files of a shard share unchanged Chunks with those that its writer stored
// before, where the file system can.
//
//   written whole --remembered--> base of the next one --remembered--> base of ...
//
// A Chunk is unchanged if its place, length and checksum are those of the base, and if the 128-bit
// digest of its bytes is the one that was taken when the base was written. Nothing of the base is
// read. Its files must be those that were written, and still lie where their step is published;
// else, and after any failure, the bytes are written.
//
// Damage of a shared Chunk is in all files that share it. So each Chunk is written anew at least
// every `saves_sharing_max` saves, a few at each save.
//
// Threads: one executor. One object serves one call of write_shard.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/compute.hpp"
#include "format/shard_record.hpp"
#include "os/file_system.hpp"
#include "storage/chunk_map.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// A Chunk in 64 is 1.6 % of a save: with the 1 % that adapters change it stays below 3 %.
inline constexpr std::uint32_t saves_sharing_max = 64;

// StoredShard: what the writer of a shard remembers of it. 20 bytes for each Chunk.
struct StoredShard {
  std::string job;
  format::RunId run;
  format::ShardId id;
  Digest model;
  std::uint64_t chunk_bytes = 0;
  std::vector<Crc32> crcs;            // By Chunk.
  std::vector<Digest> digests;        // By Chunk, of the bytes that were written.
  std::vector<os::FileStatus> files;  // By member, as they were left.
  std::uint32_t round = 0;            // Says which Chunks were written anew in any case.
};

// The next save of the same rank, timeline and tensors may share with it.
bool may_share(const StoredShard& earlier, const format::ShardRecord& record);

class ChunkSharing {
 public:
  // A shard stored before, and the directory in which its step is, once it is published.
  struct Earlier {
    std::shared_ptr<const StoredShard> shard;
    std::string directory;
  };
  // The newest of the rank, if there is one. No older one takes its place: files that were replaced
  // may have been damaged, and the damage would come back from the step before.
  explicit ChunkSharing(std::optional<Earlier> earlier) : earlier_(std::move(earlier)) {}

  // Shares with what was stored before in this site, once it is published; null: nothing was. Null
  // where nothing can be shared: in a bucket.
  static std::shared_ptr<ChunkSharing> in(const Site& site,
                                          std::shared_ptr<const StoredShard> earlier);

  // Looks whether its files are published as they were written. Never fails: else all is written.
  Task<void> begin(os::FileSystem& files, std::shared_ptr<const format::ShardRecord> record);
  bool has_base() const { return base_.shard != nullptr; }

  // True: the file of the segment's member shares the Chunk. False: its bytes must be written. The
  // spans are those of the Chunk. Errors: exhausted (no thread for the digest).
  Task<bool> share(std::size_t chunk, std::vector<FileSegment> segments,
                   std::vector<std::span<const std::byte>> bytes, os::File* file, Compute* compute);

  // After the files were synced and closed: looks at them by their paths, to know them again.
  Task<void> finish(os::FileSystem& files, std::vector<std::string> paths);

  // Null before finish(), or if the files could not be looked at.
  const std::shared_ptr<const StoredShard>& stored() const { return stored_; }
  std::uint64_t bytes_shared() const { return bytes_shared_; }
  // Why Chunks that may be shared are not, first of all. `unsupported`: it will always be so.
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  bool is_unchanged(std::size_t chunk) const;
  void refuse(Error error);

  std::optional<Earlier> earlier_;
  std::shared_ptr<const format::ShardRecord> record_;
  Earlier base_;  // Its shard is null: there is none.
  std::uint32_t round_ = 0;
  std::vector<Digest> digests_;
  std::uint64_t bytes_shared_ = 0;
  std::optional<Error> refusal_;
  std::shared_ptr<const StoredShard> stored_;
};

}  // namespace ckpt::storage
