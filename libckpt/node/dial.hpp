// Dial: a connection to another node of the job, whose daemon has proven itself.
//
// Threads: those of the network and the clock, which outlive it.
#pragma once

#include <string>

#include "wire/handshake.hpp"

namespace ckpt::node {

struct DialTarget {
  std::string address;
  std::string job;
  std::string node;       // Ours.
  std::string peer_node;  // The node that must answer.
  std::string secret;     // Its bytes.
  std::uint64_t boot = 0;
  wire::Purpose purpose = wire::Purpose::control;
  wire::MakeNonce make_nonce;
};

// `boot`: where to put that of the peer; may be null. Errors: those of the network and of
// greet_as_dialer, unavailable after 3 s.
Task<std::shared_ptr<wire::Connection>> dial_peer(wire::Network& network, Clock& clock,
                                                  DialTarget target, std::uint64_t* boot);

}  // namespace ckpt::node
