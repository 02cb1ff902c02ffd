// SimulatedJob: a job of many nodes in one thread, over a network in memory and virtual time.
//
// Every node has a whole engine, with eight ranks that have captured one step, which is committed.
// From then on nothing changes, and run() measures what the nodes still do and send. A node's
// processor time is the time of its io_context, including the network in memory. Its bytes are
// those it received.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "support/memory_file_system.hpp"
#include "support/sim_network.hpp"

namespace bench {

struct ControlCost {
  double bytes = 0;         // For each node and beat: received on the network.
  double microseconds = 0;  // For each node and beat: of the processor.
};

class SimulatedJob {
 public:
  // Exits with a message if the step is not committed in time.
  SimulatedJob(std::size_t nodes, std::uint32_t ranks_per_node);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  // Lets this many heartbeats pass.
  void run(std::size_t beats);
  // Results of the last run(): the mean of all nodes, and the coordinator's.
  ControlCost mean() const { return mean_; }
  ControlCost coordinator() const { return coordinator_; }
  // The cost of one status request at the coordinator.
  double status_milliseconds();
  std::size_t nodes() const { return nodes_.size(); }

 private:
  struct Trainer;
  struct Machine;

  void attach_ranks(Machine& machine, std::size_t index, std::uint32_t ranks_per_node);
  void pass(ckpt::Duration duration);
  std::vector<std::uint64_t> bytes_received() const;
  bool is_committed() const;

  ckpt::test::MemoryDisk disk_;
  ckpt::test::SimNetwork network_;
  std::vector<std::unique_ptr<Machine>> nodes_;
  ControlCost mean_, coordinator_;
};

}  // namespace bench
