// PeerService: answers the requests on one data connection, one after another, until it ends.
//
// Threads:  the connection's. Lifetime: clock, sink and provider must outlive it; close the
// connection to end it.
#pragma once

#include "replicate/replica_receiver.hpp"
#include "replicate/shard_fetch.hpp"

namespace ckpt::replicate {

struct ServiceOptions {
  Duration idle_max = std::chrono::minutes(10);  // Without a request.
  Duration stall = std::chrono::seconds(10);
  Duration transfer_max = std::chrono::minutes(30);
  std::function<std::uint64_t()> timeline;  // Our current one; may be empty.
  Compute* compute = nullptr;               // Computes the checksums.
};

// Succeeds if the peer said goodbye, closed the connection between two requests, or was idle for
// too long. Always closes the connection. Errors: those of the connection during a request,
// corruption and invalid_argument (of the peer's data).
Task<void> serve_peer(std::shared_ptr<wire::Connection> connection, Clock& clock,
                      wire::PeerIdentity peer, ReplicaSink& sink, ShardProvider& provider,
                      ServiceOptions options);

}  // namespace ckpt::replicate
