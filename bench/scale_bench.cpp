// Goal:   while nothing changes, traffic and work of a job's nodes grow no faster than log N (B34).
// Method: jobs of 8, 64 and 512 simulated nodes of 8 ranks, in virtual time, after a step was
//         committed: bytes received and processor time, for each node and heartbeat. The mean of
//         all nodes is judged; the coordinator's is shown beside it.
#include <fmt/format.h>

#include <algorithm>
#include <ckpt/options.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/log.hpp"
#include "bench/harness.hpp"
#include "bench/simulated_job.hpp"

namespace {

constexpr std::uint32_t ranks_per_node = 8;
constexpr std::size_t node_beats = 8192;  // In one measurement, for any number of nodes.

void measure(bench::SimulatedJob& job) {
  job.run(std::max<std::size_t>(4, node_beats / job.nodes()));
}

std::string in_words(const bench::SimulatedJob& job) {
  return fmt::format(
      "{} nodes: a node receives {:.0f} bytes and takes {:.0f} us, the coordinator "
      "{:.0f} bytes and {:.0f} us",
      job.nodes(), job.mean().bytes, job.mean().microseconds, job.coordinator().bytes,
      job.coordinator().microseconds);
}

}  // namespace

int main(int argc, char** argv) {
  using bench::Better;
  bench::Harness harness("scale", argc, argv);
  ckpt::Log::set_level(ckpt::LogLevel::error);
  const char* most = std::getenv("CKPT_SCALE_NODES");  // Fewer, where memory is short.
  const std::size_t nodes = most != nullptr ? std::strtoul(most, nullptr, 10) : 512;
  bench::SimulatedJob small(8, ranks_per_node), middle(64, ranks_per_node);
  bench::SimulatedJob large(nodes, ranks_per_node);
  std::vector<double> bytes, time, coordinator_bytes, coordinator_time, status;
  for (std::size_t pair = 0; pair < harness.pairs(); ++pair) {
    const bool large_first = pair % 2 == 1;
    measure(large_first ? large : small);
    measure(large_first ? small : large);
    bytes.push_back(large.mean().bytes / small.mean().bytes);
    time.push_back(large.mean().microseconds / small.mean().microseconds);
    coordinator_bytes.push_back(large.coordinator().bytes);
    coordinator_time.push_back(large.coordinator().microseconds);
    status.push_back(large.status_milliseconds());
  }
  measure(middle);
  for (const bench::SimulatedJob* job : {&small, &middle, &large}) {
    harness.add_condition(in_words(*job));
    std::printf("%s\n", in_words(*job).c_str());
  }
  const std::string few = fmt::format("{} nodes / 8 nodes, a beat", nodes);
  const std::string many = fmt::format("the coordinator of {} nodes, a beat", nodes);
  harness.sample({"B34", few + ": bytes", 3, 6, Better::lower}, 0.5, bytes);
  harness.sample({"B34 cpu", few + ": processor", 3, 6, Better::lower}, 0.5, time);
  harness.sample({"B34 c", many, 0, 0, Better::lower, "bytes"}, 0.5, coordinator_bytes);
  harness.sample({"B34 c cpu", many, 0, 0, Better::lower, "us"}, 0.5, coordinator_time);
  harness.sample(
      {"B34 s", fmt::format("`ckpt status` of {} nodes", nodes), 0, 0, Better::lower, "ms"}, 0.5,
      status);
  return harness.finish();
}
