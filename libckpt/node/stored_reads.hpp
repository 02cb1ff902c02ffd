// StoredReads: shards read back from storage, from the nearest place that has a good copy.
//
// The places hold the same bytes of a step. A place whose copy of a shard turns out to be bad is
// not asked for that shard again, and the next one is.
//
// Threads: the engine's. Lifetime: the JobStorage's; its coroutines hold the Job.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gather/shard_source.hpp"
#include "node/job_facts.hpp"
#include "node/stored_place.hpp"
#include "storage/open_step.hpp"

namespace ckpt::node {

class StoredReads {
 public:
  StoredReads(const JobFacts& facts, std::deque<StoredPlace>& places)
      : facts_(facts), places_(places) {}

  // Reads what the places have of this step alone, until one has it.
  Task<void> look_up(format::StepId at);
  // The newest step that was looked up; none: it was not there.
  const std::optional<format::StepId>& looked_up() const { return looked_up_; }
  // In the nearest place. Errors: not_found (it is unknown), and those of storage::read_manifest.
  Task<storage::OpenStep> open(format::StepId at) const;
  void forget();  // Unreadable files may be read again; damage stays.
  void forget_damage(const std::function<bool(format::ShardId id)>& may_be_mended);
  void written_anew(format::ShardId id) { bad_.erase({id, 0}); }  // In the first place.
  struct Bad {
    format::ShardId id;
    std::size_t place = 0;
    auto operator<=>(const Bad&) const = default;
  };
  // Those that were found damaged, of two places.
  std::vector<Bad> damaged_copies() const;
  // Replaces what is damaged by what the other place has. Errors: not_found (that lacks the step),
  // and those of storage::repair_checkpoint.
  Task<void> repair(Bad bad, storage::TransferHooks hooks);

  // Errors: not_found, corruption, io.
  Task<std::shared_ptr<const format::ShardRecord>> record_of(format::ShardId id, Digest digest);
  // After record_of. Errors: as record_of.
  Task<void> read(std::shared_ptr<const format::ShardRecord> record, std::span<std::byte> target,
                  BytesVerified verified);
  // Some Chunks of it, as gather::ShardSource says.
  Task<void> read_chunks(std::shared_ptr<const format::ShardRecord> record,
                         std::vector<std::size_t> chunks, gather::ChunkSink sink,
                         const storage::TransferHooks& hooks);

  // The Chunks that are missing: the first from an index on, or their count; the place of one; and
  // that it came.
  struct MissingChunks {
    std::function<std::size_t(std::size_t from)> next;
    std::function<std::span<std::byte>(std::size_t chunk)> place;
    std::function<void(std::size_t chunk)> came;
  };
  // From each place what is good there, also where it was found damaged. Errors: corruption (some
  // Chunk is good nowhere).
  Task<void> read_good(std::shared_ptr<const format::ShardRecord> record, MissingChunks missing);
  bool has_two_places() const { return places_.size() > 1; }
  // Where it was read last, if that was not the first place; empty: it was, or nowhere.
  std::string other_place_of(format::ShardId id) const;

 private:
  Task<void> read_good_at(std::size_t place, std::shared_ptr<const format::ShardRecord> record,
                          const MissingChunks& missing);
  struct Found {  // Where a shard lies whose record was read.
    std::size_t place = 0;
    storage::StepShard shard;
  };
  Task<std::shared_ptr<const format::ShardRecord>> record_at(std::size_t place, format::ShardId id,
                                                             Digest digest);
  Task<std::shared_ptr<const format::ShardRecord>> record_in(std::size_t place, std::string name,
                                                             format::ShardId id, Digest digest);
  Result<Found> find(format::ShardId id) const;
  Task<bool> turn_away(format::ShardId id, Error error);

  const JobFacts& facts_;
  std::deque<StoredPlace>& places_;
  std::optional<format::StepId> looked_up_;
  std::map<format::ShardId, Found> found_;
  std::map<Bad, Errc> bad_;
};

}  // namespace ckpt::node
