// Handshake: both ends of a connection prove that they have the job's secret, before anything else.
//
//   dialer                                 listener
//     hello (job, names, nonce)    -->
//                                  <--     challenge (nonce)           for any job, known or not
//     proof                        -->     checks it
//                                  <--     welcome (its boot, its proof), or refused
//
// The proofs are HMACs over everything that both have sent. Each direction of each pair of nodes
// has its own key, so a proof cannot be sent back to its maker, or used elsewhere. The handshake
// keeps strangers out; it does not hide or sign later messages.
//
// Threads: as the Connection.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "wire/connection.hpp"
#include "wire/secret.hpp"

namespace ckpt::wire {

// Purpose: the use of a connection. Control traffic never waits behind data.
enum class Purpose : std::uint8_t { control = 1, data = 2 };

inline constexpr std::size_t job_bytes_max = 128;
inline constexpr std::size_t node_bytes_max = 256;

// PeerIdentity: the other end of a connection, proven by the secret of `job`.
struct PeerIdentity {
  std::string job;
  std::string node;
  std::uint64_t boot = 0;  // A new one means that its memory of the job was lost.
  std::uint16_t protocol_version = 0;
  Purpose purpose = Purpose::control;
};

using MakeNonce = std::function<Proof()>;  // The simulator draws them from its seed.

struct DialerOptions {
  std::string job;
  std::string node;       // Ours.
  std::string peer_node;  // The node to reach; any other refuses.
  std::uint64_t boot = 0;
  Purpose purpose = Purpose::control;
  std::shared_ptr<const Secret> secret;
  MakeNonce make_nonce = random_bytes;
};

// The secret of a job, or null if the job is not known here.
using FindSecret = std::function<std::shared_ptr<const Secret>(const std::string& job)>;
// Self: this daemon's name and boot in a job; two jobs may name it differently.
struct Self {
  std::string node;
  std::uint64_t boot = 0;
};
using FindSelf = std::function<Self(const std::string& job)>;

struct ListenerOptions {
  FindSecret find_secret;
  FindSelf find_self;
  MakeNonce make_nonce = random_bytes;
};

// Errors: unavailable (connection, deadline, refused), invalid_argument (refused: job or secret),
//         version_mismatch, corruption. The connection is then closed.
Task<PeerIdentity> greet_as_dialer(std::shared_ptr<Connection> connection, DialerOptions options,
                                   Time deadline);
Task<PeerIdentity> greet_as_listener(std::shared_ptr<Connection> connection,
                                     std::shared_ptr<const ListenerOptions> options, Time deadline);

}  // namespace ckpt::wire
