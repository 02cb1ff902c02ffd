// Healing: finds damage that nobody has met yet, and makes damaged copies good again.
//
//   verify   the sealed Slots are compared with their checksums, now and then, Chunk by Chunk
//   copies   a copy that was quarantined comes again: from a peer that has one, else from storage
//   files    a rank's stored files that are damaged are written anew from a Slot of this node
//
// All of it goes on in the background, one shard at a time, and gives up after some tries. Work
// on storage has a coroutine of its own: storage that hangs holds up nothing else.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <map>
#include <string>

#include "base/signal.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/job_storage.hpp"
#include "node/peers.hpp"
#include "node/replication.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

struct Healed {
  std::uint64_t copies = 0;  // In memory.
  std::uint64_t files = 0;   // Shards whose files were written anew.
  std::string newest;        // For people; empty: nothing was healed.
};

class Healing {
 public:
  Healing(const JobFacts& facts, JobLife& life, SlotTable& slots, Peers& peers,
          Replication& replication, JobStorage& storage);

  void open();  // Verification begins.
  void wake();  // Something may have been quarantined, or found damaged.
  void stop();
  void memory_freed();  // Nothing of it is wanted any more.
  const Healed& healed() const { return healed_; }

 private:
  enum class Source : std::uint8_t { peers, storage };
  struct Lost {
    Digest digest;
    Source source = Source::peers;  // Where it is looked for.
    std::uint32_t tries = 0;
  };
  asio::awaitable<void> verify_now_and_then();
  asio::awaitable<void> verify_memory();
  asio::awaitable<void> verify_copy(std::weak_ptr<arena::Slot> copy);
  asio::awaitable<void> verify_files();
  Task<void> verify_shard(format::ShardId id, Digest digest);
  bool is_needed(Source source) const;
  void begin(Source source, bool& is_running);
  asio::awaitable<void> run(Source source);
  asio::awaitable<void> heal_copies(Source source);
  void not_healed(format::ShardId id, const Error& error);
  asio::awaitable<void> heal_files();
  Task<std::string> heal_from_peers(format::ShardId id, Digest digest);
  Task<std::string> heal_from_storage(format::ShardId id, Digest digest);
  Task<std::string> fill(std::shared_ptr<const format::ShardRecord> record, Digest digest,
                         std::vector<std::string> holders);
  Task<std::shared_ptr<arena::Slot>> take_slot(std::shared_ptr<const format::ShardRecord> record);
  bool is_wanted(format::ShardId id, const Digest& digest) const;
  // A Slot here that has the bytes of stored files which are damaged; null: none.
  std::shared_ptr<arena::Slot> source_for(format::ShardId id) const;
  bool is_given_up(format::ShardId id) const;
  asio::awaitable<void> heal_from_memory(format::ShardId id);
  void note_files(format::ShardId id, const Status& healed, const char* from);
  bool has_files_to_heal() const;
  void count(std::uint64_t& healed, std::string what);

  const JobFacts& facts_;
  JobLife& life_;
  SlotTable& slots_;
  Peers& peers_;
  Replication& replication_;
  JobStorage& storage_;
  Signal stopped_;  // Only closed.
  Healed healed_;
  std::map<format::ShardId, Lost> lost_;            // Copies.
  std::map<format::ShardId, std::uint32_t> files_;  // Tries, of files that were found damaged.
  std::uint64_t memory_ = 0;                        // Grows when it is freed.
  bool uses_memory_ = false;                        // A coroutine heals from peers;
  bool uses_storage_ = false;                       // one from storage, and files.
  bool is_reading_files_ = false;
  bool is_stopping_ = false;
};

}  // namespace ckpt::node
