// Receiver: the far end of a replication: receives each offered shard into one Slot for each lane,
// verified.
#pragma once

#include <cstddef>
#include <string>

namespace bench {

// A node sends to a target over so many connections, a shard over each.
inline constexpr std::size_t lanes = 2;

// Listens on `address` (port 0: any), prints the address, and serves one peer until it leaves.
// `bytes` is the size of each Slot.
int receive_replicas(const std::string& address, std::size_t bytes);

}  // namespace bench
