// PeerAcceptor: accepts connections, and hands over those that prove to be peers.
//
// A stranger gets little: a limited number of half-open connections, few seconds and few bytes.
// Strangers cannot keep a peer out: a newcomer is accepted, and if there are too many, the oldest
// half-open connection of its own address is closed, or of the address that has most.
//
// Threads:  the executor that it runs on. Lifetime: its arguments must outlive it. Closing the
// listener ends it, and greetings under way end by their own deadline.
#pragma once

#include <functional>
#include <memory>

#include "wire/handshake.hpp"

namespace ckpt::wire {

inline constexpr std::size_t half_open_connections_max = 64;
// From one address, or from one IPv6 network of 64 bits, since one owner has all its addresses.
// Enough for several nodes of a test on one host, and for several behind one router.
inline constexpr std::size_t half_open_of_one_max = 16;
inline constexpr Duration greeting_time_max = std::chrono::seconds(5);

using Admit = std::function<void(std::shared_ptr<Connection>, PeerIdentity)>;

// Returns when the listener is closed. Refusals are logged at a limited rate.
Task<void> admit_peers(Listener& listener, Clock& clock,
                       std::shared_ptr<const ListenerOptions> options, Admit admit);

}  // namespace ckpt::wire
