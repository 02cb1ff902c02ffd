// Receiver: the far end of a replication: receives each offered shard into one Slot, verified.
#pragma once

#include <string>

namespace bench {

// Listens on `address` (port 0: any), prints the address, and serves one peer until it leaves.
int receive_replicas(const std::string& address, std::size_t bytes);

}  // namespace bench
