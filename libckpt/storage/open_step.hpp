// OpenStep: a published step whose manifest was read. Its shards are read by rank; no caller names
// its directory or its files.
//
// Lifetime: it borrows what its Site borrows, and holds no file open.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_copies.hpp"
#include "storage/shard_files.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

class OpenStep {
 public:
  // `name` is a Checkpoint's in this site. Errors: those of read_manifest (catalog.hpp).
  static Task<OpenStep> in(Site site, std::string name);
  // The site's directory is itself the step, for readers without a job. Errors: as above.
  static Task<OpenStep> at(Site site);
  // Its manifest was read before.
  static OpenStep known(Site site, std::string_view name,
                        std::shared_ptr<const format::Manifest> manifest);

  const Site& site() const { return site_; }
  const std::shared_ptr<const format::Manifest>& manifest() const { return copy_.manifest; }
  const std::string& place() const { return copy_.directory; }  // For people: os::display shows it.
  const StepCopy& copy() const { return copy_; }

 private:
  OpenStep(Site site, StepCopy copy) : site_(std::move(site)), copy_(std::move(copy)) {}

  Site site_;
  StepCopy copy_;
};

// For programs of others, which open files by path.
struct TensorFile {
  std::string archive;  // The torch archive that it is; empty: it has the tensors outside of those.
  std::string path;
};
// By rank.
std::vector<std::vector<TensorFile>> tensor_files(const OpenStep& step);

// StepShard: one rank's shard of an open step. It keeps no manifest in memory.
struct StepShard {
  Site site;
  ShardPlace files;
  Digest record;
};
// Errors: not_found (no such rank).
Result<StepShard> shard_of(const OpenStep& step, std::uint32_t rank);

// Errors of all: those of the functions of the same names that take paths (part_reader.hpp,
// member_reader.hpp, shard_copies.hpp, ShardFiles::open).
Task<std::shared_ptr<const format::ShardRecord>> read_record(OpenStep step, std::uint32_t rank);
Task<void> read_shard(StepShard shard, std::shared_ptr<const format::ShardRecord> record,
                      std::span<std::byte> target, TransferHooks hooks);
Task<std::shared_ptr<ShardFiles>> open_files(StepShard shard,
                                             std::shared_ptr<const format::ShardRecord> record);
Task<PartExcerpt> find_tensors(OpenStep step, std::uint32_t rank, std::vector<std::string> names);

// SaveCopies: copies of one save, the nearest first; there is at least one. A part that is damaged
// in one comes from the next.
using SaveCopies = std::vector<OpenStep>;
Task<std::shared_ptr<const format::ShardRecord>> read_record(SaveCopies copies, std::uint32_t rank);
Task<std::shared_ptr<ShardCopies>> open_shard(SaveCopies copies,
                                              std::shared_ptr<const format::ShardRecord> record);
Task<std::shared_ptr<ShardCopies>> open_shard(StepShard shard,
                                              std::shared_ptr<const format::ShardRecord> record);

}  // namespace ckpt::storage
