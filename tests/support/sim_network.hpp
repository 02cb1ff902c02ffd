// SimNetwork: a network without sockets: delays, cuts, resets, silence and flipped bits by seed.
//
// One world for all nodes; each node has a front-end that is its wire::Network. A stream behaves as
// TCP does: bytes stay in order, a full window makes the writer wait, closing with unread bytes
// resets, and a peer that is gone may show by a reset or by nothing at all.
//
// Threads:  one, for all nodes. The run is a function of the seed and of what the nodes do.
// Lifetime: a node's clock outlives its kill() or the world. Suspended reads and writes belong to
//           the node's io_context and may be destroyed with it at any time after kill().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "wire/connection.hpp"

namespace ckpt::test {

struct SimNetworkOptions {
  Duration delay_min = std::chrono::microseconds(50);
  Duration delay_max = std::chrono::microseconds(500);
  std::uint64_t bytes_per_second = 0;       // For each stream; 0: no limit.
  std::uint64_t piece_bytes_max = 1 << 16;  // A write arrives in pieces of 1 to this.
  std::uint64_t window_bytes = 1 << 18;     // On its way or unread; more makes the writer wait.
  // Odds per piece; 0: never.
  std::uint64_t reset_one_in = 0;
  std::uint64_t flip_one_in = 0;
  std::size_t flip_bytes_min = 1;  // Only pieces so long may be flipped.
  // Odds that a killed peer shows by silence and not by a reset; 1: always silence, 0: never.
  std::uint64_t silence_one_in = 2;
  // Odds that a stream does not survive a partition that heals.
  std::uint64_t break_at_heal_one_in = 4;
};

// StreamFault: a fault at one byte of a stream, once, to the next stream that reaches it.
struct StreamFault {
  enum class Kind : std::uint8_t { flip, reset };
  std::string from;  // Nodes: the stream's direction.
  std::string to;
  std::uint64_t offset = 0;  // The byte's, since the connection began.
  Kind kind = Kind::flip;
  std::uint8_t bit = 0;
};

class SimNetwork {
 public:
  explicit SimNetwork(std::uint64_t seed, SimNetworkOptions options = {});
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // The node's way to the world. A killed node may be added again under its name: as a new one.
  std::unique_ptr<wire::Network> add_node(const std::string& name, Clock& clock);

  // Its connections break, its listeners vanish, its clock is used no more. Call it before the
  // node's io_context and clock are destroyed.
  void kill(const std::string& node);

  // Bytes from `from` to `to` stand still until heal(); nothing is lost yet.
  void partition_one_way(const std::string& from, const std::string& to);
  void partition(const std::string& left, const std::string& right);
  void heal(const std::string& left, const std::string& right);
  void heal_all();

  void set_options(SimNetworkOptions options);  // For what is written from now on.
  void inject(StreamFault fault);
  // Breaks every stream between the two: resets, as a switch that restarts.
  void reset_streams(const std::string& left, const std::string& right);

  std::uint64_t bytes_delivered(const std::string& from, const std::string& to) const;
  std::size_t open_streams(const std::string& node) const;  // Ends that were not closed.

 private:
  struct World;
  class Front;
  class Port;
  class PortHandle;
  class End;
  struct Host;
  std::shared_ptr<World> world_;
};

}  // namespace ckpt::test
