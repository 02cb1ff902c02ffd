// Peers: the control connections of one job: who is alive, reports to the coordinator, its decrees.
//
// Every node dials every other one and only writes on that connection; what it hears comes on the
// connections that others opened. So there is no tie to break, and each direction fails alone.
//
// Threads: the engine's. Lifetime: owned by the Job; its coroutines hold the Job.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/signal.hpp"
#include "wire/handshake.hpp"

namespace ckpt::node {

class Job;

class Peers {
 public:
  explicit Peers(Job& job);
  ~Peers();

  void members_changed();  // Dial those that are new; let go of those that are no more.
  void wake();             // The report or the decree may have changed.
  void stop();

  // Heard from within the limit. We ourselves are not a peer.
  bool is_live(const std::string& node) const;
  // The boot that it last spoke with; 0: it was not heard yet. Another one: it lost what it held.
  std::uint64_t boot_of(const std::string& node) const;
  // Why nodes have not been reached for as long as makes one lost; empty: all were, or it is early.
  std::string trouble() const;
  // Serves a control connection that a peer opened and authenticated.
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);
  // A connection of our own, authenticated, for shards.
  Task<std::shared_ptr<wire::Connection>> dial(std::string node, wire::Purpose purpose,
                                               std::uint64_t* boot);

 private:
  struct Peer {
    std::string address;
    std::optional<Time> heard_at;
    std::uint64_t boot = 0;
    bool is_dialing = false;  // Its control loop runs.
    std::optional<Time> unreached_since;
    std::string failure;  // Of the last attempt to reach it.
  };
  struct Sent;

  asio::awaitable<void> control(std::string node);
  // False: a newer list has another name for us, or another host for the node.
  bool are_still(const std::string& self, const std::string& node,
                 const std::string& address) const;
  void note_attempt(const std::string& node, const std::string& failure);  // Empty: reached.
  Task<void> tell(std::shared_ptr<wire::Connection> connection, std::string node,
                  std::shared_ptr<Sent> sent);
  asio::awaitable<void> listen_to(std::shared_ptr<wire::Connection> connection,
                                  wire::PeerIdentity identity);

  Job& job_;
  std::map<std::string, Peer> peers_;
  Signal changed_;
  bool is_stopping_ = false;
};

}  // namespace ckpt::node
