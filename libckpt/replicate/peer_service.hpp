// PeerService: answers the requests on one data connection, one after another, until it ends.
//
// Threads:  the connection's. Lifetime: clock, sink and provider must outlive it; close the
// connection to end it.
#pragma once

#include "replicate/replica_receiver.hpp"
#include "replicate/shard_fetch.hpp"

namespace ckpt::replicate {

struct ServiceOptions {
  Duration idle_max = std::chrono::minutes(10);  // Without a request; then it is closed.
  Duration stall = std::chrono::seconds(10);
  Duration transfer_max = std::chrono::minutes(30);
  std::function<std::uint64_t()> timeline;  // Ours, now; may be empty.
};

// Success: the peer said goodbye, closed the connection between two requests, or asked nothing for
// too long. Errors: those of the connection in the middle of a request, corruption and
// invalid_argument (what the peer sent). The connection is closed in any case.
Task<void> serve_peer(std::shared_ptr<wire::Connection> connection, Clock& clock,
                      wire::PeerIdentity peer, ReplicaSink& sink, ShardProvider& provider,
                      ServiceOptions options);

}  // namespace ckpt::replicate
