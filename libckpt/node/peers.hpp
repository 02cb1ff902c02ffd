// Peers: the state of a job's other nodes, as far as known, and the statements to them.
//
// The connections are those of PeerLines, which may have a thread of their own, and pass their
// news on. A coordinator states its decree to all, every other node its report to the
// coordinator. Both refer to the Start by its digest; one that is not known here is asked for, and
// what refers to it waits.
//
// Threads: the engine's. Lifetime: the Job's.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "format/agreement.hpp"
#include "node/heard_nodes.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/peer_lines.hpp"
#include "wire/handshake.hpp"
#include "wire/message.hpp"

namespace ckpt::node {

class Peers final : public LineEvents {
 public:
  Peers(const JobFacts& facts, JobLife& life) : facts_(facts), life_(life) {}

  void open();  // Once, before anything else.
  void members_changed();
  void wake(const format::NodeReport& report);  // It or the decree may have changed.
  void stop();

  std::string coordinator() const;  // The lowest live node of the list.
  bool is_coordinator() const;      // We are.
  // Our lines run, so that others hear us. A node that was stopped, or whose machine was, must
  // decide nothing by what it heard before: a successor may have decided otherwise.
  bool is_heard_by_others() const;
  // When we last began anew after that; the nodes may still be on their way back to us.
  std::optional<Time> stood_still_at() const { return stood_still_at_; }
  const HeardNodes& heard_nodes() const { return heard_; }
  // Heard by ourselves within the limit. We are no peer of ours.
  bool is_heard(const std::string& node) const;
  // Heard by us, or by the coordinator.
  bool is_live(const std::string& node) const;
  // The boot that it last spoke with to us or to the coordinator; 0: it was not heard yet.
  // Another one: it lost what it held.
  std::uint64_t boot_of(const std::string& node) const;
  // A node before us in the list that was not tried yet, or a moment ago.
  bool may_come(const std::string& node) const;
  // Why nodes have not been reached for as long as makes one lost; empty: all were, or it is early.
  std::string trouble() const;
  // Takes a control connection that a peer opened and authenticated.
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);
  // A connection of our own, authenticated, for shards.
  Task<std::shared_ptr<wire::Connection>> dial(std::string node, wire::Purpose purpose,
                                               std::uint64_t* boot);

  // --- LineEvents ---
  void heard(const std::string& node, std::uint64_t boot, std::uint64_t stated) override;
  void lost(const std::string& node) override;
  void watched(const std::string& node, bool is_it) override;
  void attempted(const std::string& node, const std::string& failure) override;
  void received(const std::string& node, wire::Message message) override;
  void watching(Time at) override;
  void stood_still() override;

 private:
  struct Peer {
    std::string address;
    std::uint64_t boot = 0;  // 0: never heard by us.
    bool is_heard = false;
    bool was_tried = false;
    std::optional<Time> watched_since;
    // The newest statement, as long as its Start is not known; null: none.
    std::function<void(format::SharedStart)> waiting;
    format::SharedStart waits_for;
  };

  struct Unreached {
    Time since;
    std::string failure;  // From the last attempt to reach it.
  };

  template <class Call>
  void on_lines(Call call);
  // As the coordinator's decree names it; null: it does not, or no coordinator has decreed yet.
  const format::LiveNode* decreed(const std::string& node) const;
  void take_report(const std::string& node, format::NodeReport report);
  void take_decree(const std::string& node, format::Decree decree);
  bool is_replaced(const format::Decree& decree) const;
  void leave(std::uint64_t incarnation);
  // Calls `take` with the Start when it is known: at once, or when the node has answered.
  void with_start(const std::string& node, const format::SharedStart& start,
                  std::function<void(format::SharedStart)> take);
  format::SharedStart find_start(const format::SharedStart& start) const;
  void remember(format::SharedStart start);
  void received_start(const wire::Message& message);
  void answer_question(const std::string& node, const wire::Message& message);

  const JobFacts& facts_;
  JobLife& life_;
  HeardNodes heard_;
  std::shared_ptr<PeerLines> lines_;
  std::map<std::string, Peer> peers_;
  std::map<std::string, Unreached> unreached_;  // Few of the peers, as each look reads them all.
  std::deque<format::SharedStart> starts_;      // The newest that were stated, by us or to us.
  Statement stated_;                            // Without the bytes.
  std::string self_;                            // Our name in the newest list.
  Time beat_at_{};
  Time watching_at_{};  // When our lines ran last, by their newest event.
  std::optional<Time> stood_still_at_;
  bool is_stopping_ = false;
};

}  // namespace ckpt::node
