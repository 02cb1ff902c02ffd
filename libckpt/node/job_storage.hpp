// JobStorage: one node's work in a job's directory: its share of a flush, publishing when it
// coordinates, and what all places of the job hold. The coordinator orders flushes and
// publications. A storage that hangs holds up nothing else.
//
//   job_storage.cpp    opening, the catalog
//   job_flush.cpp      our share of a flush, publishing
//   job_timelines.cpp  the record of timelines, claims, what earlier attempts left
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agree/coordinator.hpp"
#include "flush/flusher.hpp"
#include "node/coverage_check.hpp"
#include "node/flush_failures.hpp"
#include "node/flush_memory.hpp"
#include "node/giving_way.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/peers.hpp"
#include "node/second_place.hpp"
#include "node/slot_table.hpp"
#include "node/stored_place.hpp"
#include "node/stored_reads.hpp"
#include "storage/copies.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::node {

class JobStorage {
 public:
  // The history that storage has by now: others may have added to it.
  using Learned = std::function<void(const format::Timelines& stored)>;
  JobStorage(const JobFacts& facts, JobLife& life, SlotTable& slots, GivingWay& giving_way,
             const Peers& peers, Learned learned);

  // The marker and the history, and `with_catalog` what lies there. Errors: those of
  // storage::open_run_directory; corruption (what lies there is of another run).
  Task<format::RunId> open(std::string job, bool with_catalog);
  const agree::History& stored_history() const { return stored_.history; }
  const std::vector<format::RestoreCount>& stored_counts() const { return stored_.restore_counts; }
  void set_compression(std::optional<storage::Compression> how) { compression_ = how; }
  FlushMemory& flush_memory() { return flush_memory_; }
  flush::FlusherStatus flushed() const { return flusher_.status(); }
  void set_retention(storage::RetentionRule rule);
  void stop();

  // The steps that the coordinator has read on storage. None: not read, or it may have changed.
  const std::optional<std::vector<agree::PublishedStep>>& published() const { return published_; }
  bool is_published(format::StepId at) const;  // As far as we know, and with good files.
  void describe_rejected(agree::ClusterView& view) const;  // Was published, and is not listed now.
  const std::string& unreadable() const { return unreadable_; }  // Why storage is; else empty.
  std::string history_lost() const;  // Why storage says not what was abandoned; else empty.
  bool is_history_unreadable() const { return is_history_unreadable_; }  // It is there, then.
  std::string trouble(Time now) const;  // Records that are on their way for long; empty: none.
  bool is_history_due() const;       // It could not be stored, or is gone from storage: try again.
  void read_catalog();               // In the background; touches the job when done.
  void need_catalog();               // The same, unless it is known, or being read.
  void look_for(format::StepId at);  // This step alone: whether it is published.
  void forget_published();           // Another node coordinates, and may change it.
  void forget_catalog();             // To be read anew, steps that could not be read included.
  void forget_verdicts();            // Damage included, unless it is of use: it may be repaired.
  // It could not be used; the second: if the error says so. `was_chosen`: a vote saw it there.
  void note_damage(format::ShardId id, const Error& error);
  void note_if_damaged(format::ShardId id, const Error& error, bool was_chosen);
  const std::set<format::Damage>& damaged() const { return damaged_; }
  void write(const format::FlushOrder& order);  // Our share of a flush, and no more what was ours.
  const format::FlushReport& flush_report() const { return flush_report_; }
  using OnPublished = std::function<void(std::uint64_t flush_id, const Status& status)>;
  void publish(const agree::Publishing& publishing, OnPublished answer);

  // Discards in the background all attempts of timelines below it, by whatever daemon, but `kept`.
  void discard_older(std::uint64_t timeline, std::string kept);
  // The timeline that the Start may begin: its own, or a free one. Its own if storage is silent.
  Task<std::uint64_t> claim_timeline(format::Start start);
  Task<void> store_history(agree::History history, std::vector<format::RestoreCount> counts);
  void store_history_later(const Error& error);  // It did not succeed, or not in time.
  const FlushFailures& failures() const { return failures_; }  // To write or to publish.
  StoredReads& reads() { return reads_; }
  CoverageCheck& coverage() { return coverage_; }
  const CoverageCheck& coverage() const { return coverage_; }
  std::deque<StoredPlace>& places() { return places_; }
  std::string gone() const;  // In the first place: GoneSteps::text.
  const storage::CopiesDiffer& copies_differ() const { return copies_differ_; }
  // Replaces the rank's damaged files in the first place. Errors: those of storage::rewrite_shard.
  Task<void> write_anew(storage::ShardToWrite source);
  storage::TransferHooks healing_hooks();
  const SecondPlace* second() const { return second_ ? &*second_ : nullptr; }  // Null: none.
  void finish_copies();  // Nothing newer will come.

 private:
  struct Part {  // A flush's: whose shard it is, and which of its writers we are.
    std::uint32_t rank = 0, turn = 0;
    auto operator<=>(const Part&) const = default;
  };
  struct Shard {
    Part part;
    std::optional<arena::Lease> lease;  // None: not held yet, or no copy is here.
    Digest digest;
    bool is_own = false;
  };
  void hold(format::StepId at, Shard& shard) const;
  asio::awaitable<void> let_go(std::uint64_t flush_id);
  void begin_flush(const format::FlushOrder& order);
  void take_parts(const format::FlushOrder& order);
  bool is_ours(std::uint64_t flush_id, Part part) const;
  void fail_part(Part part, const Error& error);
  void note_progress();
  asio::awaitable<void> run_write(format::FlushOrder order);
  Task<void> write_parts(format::FlushOrder order);
  Task<void> begin_attempt(std::string name);
  Task<void> write_shard(format::FlushOrder order, Shard shard);
  asio::awaitable<void> run_publish(agree::Publishing publishing, OnPublished answer);
  Task<void> publish_and_retain(agree::Publishing publishing);
  asio::awaitable<void> run_discard(std::uint64_t timeline, std::string kept);
  Task<void> discard(storage::StaleAttempts stale);
  Task<void> discard_aside();
  Task<void> wait_aside_free();
  void count_failure(const Error& error);
  asio::awaitable<void> make_room();
  void note_differences(format::StepId at, const storage::ComparedCopies& copies);
  asio::awaitable<void> run_read_catalog();
  asio::awaitable<void> learn_history();
  Task<format::Timelines> load_history();
  void note_history(const Result<format::Timelines>& read);
  Task<void> add_to_history(agree::History history, std::vector<format::RestoreCount> counts);
  Task<void> keep_history(format::StepId to_publish);
  Task<std::uint64_t> claim_free_timeline(format::Start start);
  Task<void> keep_marker();
  asio::awaitable<void> note_mounted();
  Task<format::RunId> open_places(std::string job, bool with_catalog);
  Task<format::RunMarker> open_marker(storage::RunOrder order);
  Task<format::RunMarker> open_second_marker(storage::RunOrder order, bool is_known);
  Task<format::Timelines> load_histories();
  Task<void> refresh_catalog();
  Task<void> refresh_second();
  void adopt(storage::Catalog catalog, GoneSteps::Listing listing);
  void list_published();
  asio::awaitable<void> run_look_for(format::StepId at);
  SecondPlace::Hooks hooks_of_second();
  Task<void> wait_for_flush(Time deadline);
  asio::awaitable<void> mend_latest();
  storage::Site site() const;
  Time second_deadline() const;

  const JobFacts& facts_;
  JobLife& life_;
  SlotTable& slots_;
  GivingWay& giving_way_;
  const Peers& peers_;
  const Learned learned_;
  flush::Flusher flusher_;
  FlushMemory flush_memory_;
  format::Timelines stored_;
  std::optional<storage::MountedAt> mounted_;  // Where the directory was when it was seen last.
  storage::RetentionRule retention_;
  std::optional<storage::Compression> compression_;
  std::optional<std::vector<agree::PublishedStep>> published_;
  std::deque<StoredPlace> places_;  // The nearest first; none: memory only.
  std::optional<SecondPlace> second_;
  StoredReads reads_;
  CoverageCheck coverage_;
  std::optional<format::StepId> looking_for_;
  std::set<format::Damage> damaged_;
  std::string unreadable_, history_error_;
  FlushFailures failures_;
  bool has_history_ = false, has_second_history_ = false;  // When they were last read or written.
  bool is_history_unreadable_ = false;                     // Likewise; history_error_ says why.
  bool is_second_late_ = false;        // It did not answer when it was asked last.
  std::optional<Time> opening_until_;  // The second place is asked no longer while the job opens.
  std::optional<Time> aside_since_;    // Files are written aside, or removed there, since then.
  Signal aside_free_, hand_free_;
  std::optional<Time> history_due_;  // None: all that we know is stored.
  LogLimit history_complaints_{60.0};
  format::FlushReport flush_report_;
  std::vector<format::FlushWriter> flush_writers_;  // By rank: as ordered last.
  std::deque<Shard> to_write_;                      // Ours that have not begun.
  std::set<Part> taken_;                            // Those that were ever ours.
  bool is_writing_ = false;                         // A run_write of this flush is under way.
  int parts_in_hand_ = 0;                           // Shards, of whichever flush.
  bool has_storage_answered_ = false;               // Since this flush was ordered.
  Time progress_due_{};
  std::uint64_t publishing_id_ = 0;
  std::string publishing_;         // The work directory that is being published; empty: none is.
  std::string attempt_;            // The newest one that was ordered, and not published.
  std::vector<std::string> over_;  // Attempts that were given up.
  storage::CopiesDiffer copies_differ_;
  bool is_reading_catalog_ = false, must_read_again_ = false, is_making_room_ = false;
};

}  // namespace ckpt::node
