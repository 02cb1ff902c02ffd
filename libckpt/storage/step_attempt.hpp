// StepAttempt: one attempt to store a step in a Site, and how the shards of ranks are put into it.
//
//   begin --> put, for each rank --> publish (publish.hpp), or discard_work_directory (removal.hpp)
//
// Callers know it by the name that the coordinator has drawn (work_directory_name). Its files, and
// where they lie on a disk or in a bucket, are the business of this module alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "storage/member_writer.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

class StepAttempt {
 public:
  StepAttempt(Site site, std::string name);

  const Site& site() const { return site_; }
  const std::string& place() const { return place_; }  // For people: os::display shows it.
  bool operator==(const StepAttempt& other) const { return place_ == other.place_; }

 private:
  Site site_;
  std::string place_;
};

// The step that an attempt of this name stores; none: the name is not one of ours.
std::optional<format::StepId> step_of_attempt(std::string_view name);

// Makes room for its files. Succeeds if another node has begun it. Errors: exhausted, io.
Task<void> begin(StepAttempt attempt);
// Writes one rank's shard into it, after `begin`. Errors: those of write_shard.
Task<format::ShardFlushed> put(StepAttempt attempt, ShardToWrite source, TransferHooks hooks);
// After `put` of the same source: what there is to compare with other ranks. Errors: those of the
// other note_copies (copies.hpp).
Task<void> note_copies(StepAttempt attempt, ShardToWrite source);

}  // namespace ckpt::storage
