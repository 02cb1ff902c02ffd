// Replication: the copies of one job: ours given to peers, theirs taken, and any copy served.
//
// Two lanes to each target, each with a coroutine and a connection, send it our sealed shards,
// oldest first, until it has verified them. Lanes send shards of one step only, so that it arrives
// soon. Copies that arrive are the business of IncomingCopies: they go into Slots that no trainer
// ever has mapped.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/signal.hpp"
#include "node/copy_base.hpp"
#include "node/giving_way.hpp"
#include "node/incoming_copies.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/owed_copies.hpp"
#include "node/peers.hpp"
#include "node/slot_table.hpp"
#include "replicate/peer_service.hpp"

namespace ckpt::node {

class Replication final : public replicate::ShardProvider {
 public:
  Replication(const JobFacts& facts, JobLife& life, SlotTable& slots, Peers& peers,
              GivingWay& giving_way);

  // Whether Chunks that the target has of an earlier step are named instead of sent.
  void set_skip_unchanged(bool skips) { skips_unchanged_ = skips; }
  const CopiesSent& copies_sent() const { return copies_sent_; }

  void wake();  // There may be something to send, or other targets.
  void stop();
  void memory_freed() { incoming_.memory_freed(); }

  // Serves a data connection that a peer opened and authenticated.
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);

  Task<std::shared_ptr<const format::ShardRecord>> fetch_record(std::string peer,
                                                                format::ShardId id, Digest digest);
  // For those that ask for several.
  Task<std::shared_ptr<wire::Connection>> dial_for_records(std::string peer);
  Task<std::shared_ptr<const format::ShardRecord>> fetch_record(
      std::shared_ptr<wire::Connection> connection, format::ShardId id, Digest digest);
  // Fills `target` from all of `peers` with the Chunks that are not in `have`. `on_chunk` is called
  // for each that was verified there; it may be null. A record without its tensors comes with its
  // digest.
  using OnChunk = std::function<void(std::size_t chunk)>;
  static OnChunk counting(std::shared_ptr<const format::ShardRecord> record, BytesVerified bytes);
  Task<void> fetch(std::vector<std::string> peers,
                   std::shared_ptr<const format::ShardRecord> record, replicate::Destination target,
                   replicate::ChunkSet have, OnChunk on_chunk,
                   std::optional<Digest> record_digest = std::nullopt);

  // Nodes that keep copies of ours; for status.
  const std::vector<std::string>& targets() const { return targets_; }
  // The nodes of our group: those that keep copies of ours, or whose copies we keep.
  const std::set<std::string>& partners() const { return partners_; }
  // Copies that have not arrived for long, at targets that are live; empty: none.
  std::string trouble(Time now) const;

  Result<replicate::SealedShard> lease(const std::string& job, const format::ShardId& shard,
                                       const Digest& digest) override;
  void damaged(const std::string& job, const replicate::SealedShard& copy,
               std::size_t chunk) override;

  // A copy of the rank that broke off on its way here gives its Slot back. False: there is none.
  bool make_room(std::uint32_t rank) { return incoming_.make_room(rank); }

 private:
  struct FeedLine {
    std::shared_ptr<wire::Connection> connection;
    std::uint64_t boot = 0;  // The target's, as it was dialed.
  };

  void choose_targets();
  bool is_target(const std::string& node) const;
  asio::awaitable<void> feed(Lane lane);
  // Sends one shard over the lane's connection, which is made when there is none.
  Task<void> send(Lane lane, std::shared_ptr<arena::Slot> slot);
  void hear_boots();
  template <class Claim>
  void close_lines(Claim claim);
  void note_boot(const std::string& target, std::uint64_t boot);
  std::shared_ptr<arena::Slot> next_for(const std::string& target);
  bool is_under_way(const std::string& target, const Copy& copy) const;
  bool is_late(const std::string& target, const OwedCopies::Owed& owed, Time now) const;
  asio::awaitable<void> serve(std::shared_ptr<wire::Connection> connection,
                              wire::PeerIdentity identity);
  replicate::TransferOptions transfer_options() const;

  const JobFacts& facts_;
  JobLife& life_;
  SlotTable& slots_;
  Peers& peers_;
  GivingWay& giving_way_;
  IncomingCopies incoming_;
  Signal changed_;
  std::vector<std::string> targets_;
  std::set<std::string> partners_;
  std::map<Lane, FeedLine> feed_lines_;
  std::set<Lane> fed_;                           // Those whose coroutine runs.
  std::map<Lane, Copy> under_way_;               // The copy that a lane sends.
  std::map<std::string, std::set<Copy>> given_;  // By target: verified there.
  std::uint64_t given_in_ = 0;                   // Which timeline was the newest then.
  OwedCopies owed_;
  std::map<std::string, std::uint64_t> heard_boots_;   // As the control lines have it.
  std::map<std::string, std::uint64_t> target_boots_;  // The newest, of a lane or a control line.
  std::set<std::shared_ptr<wire::Connection>> served_;
  Digest placed_for_;      // Members that targets_ was computed for.
  std::string placed_as_;  // Our name then.
  CopiesSent copies_sent_;
  bool skips_unchanged_ = false;
  bool is_stopping_ = false;
};

}  // namespace ckpt::node
