// Sends two shards from this node's Slots into a peer's, verified there, over two connections, as a
// node with several ranks does, against iperf3 on the same path.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/started.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/receiver.hpp"
#include "bench/shard.hpp"
#include "bench/two_hosts.hpp"
#include "replicate/replica_sender.hpp"
#include "wire/message.hpp"
#include "wire/tcp_network.hpp"

namespace {

using namespace ckpt;

double iperf_rate(const bench::TwoHosts& hosts, std::size_t bytes, int streams) {
  const std::string port = "5299";
  bench::Process server =
      bench::Process::start(hosts.on_far({"iperf3", "--server", "--one-off", "--forceflush",
                                          "--bind", hosts.far_address(), "--port", port}));
  server.read_line();  // A line of dashes, then "Server listening".
  server.read_line();
  const std::string said =
      bench::output_of({"iperf3", "--client", hosts.far_address(), "--port", port, "--json",
                        "--bytes", std::to_string(bytes), "--parallel", std::to_string(streams)});
  server.wait();
  const auto report = nlohmann::json::parse(said, nullptr, false);
  if (report.is_discarded()) bench::give_up("iperf3: it said no JSON");
  return report["end"]["sum_received"]["bits_per_second"].get<double>() / 8;
}

}  // namespace

int main(int argc, char** argv) {
  Log::set_level(LogLevel::error);
  if (argc == 4 && std::string(argv[1]) == "receiver")
    return bench::receive_replicas(argv[2], std::strtoull(argv[3], nullptr, 10));

  bench::Harness harness("replicate", argc, argv);
  const bench::TwoHosts hosts;
  harness.add_condition(hosts.in_words());
  bench::Loop loop;
  std::vector<std::unique_ptr<bench::Shard>> shards;
  for (std::size_t lane = 0; lane < bench::lanes; ++lane)
    shards.push_back(std::make_unique<bench::Shard>(loop, harness.bytes() / bench::lanes));
  bench::Process receiver =
      bench::Process::start(hosts.on_far({bench::own_path(), "receiver", hosts.far_address() + ":0",
                                          std::to_string(shards[0]->memory->bytes().size())}));
  const std::string address = receiver.read_line();
  wire::TcpNetwork network(loop.context.get_executor(), *loop.clock);
  std::vector<std::shared_ptr<wire::Connection>> connections;
  for (std::size_t lane = 0; lane < bench::lanes; ++lane)
    connections.push_back(bench::must(
        loop.run(network.connect(address, loop.clock->after(std::chrono::seconds(5))))));

  std::uint64_t step = 0;
  const auto ours = [&] {
    ++step;
    std::uint64_t bytes = 0;
    for (const auto& shard : shards) {
      shard->become_step(step);
      bytes += shard->record->bytes;
    }
    return bench::rate(static_cast<double>(bytes), [&] {
      std::vector<Started<replicate::Delivery>> sent;
      for (std::size_t lane = 0; lane < bench::lanes; ++lane) {
        replicate::SealedShard source;
        source.record = shards[lane]->record;
        source.spans = shards[lane]->spans();
        sent.emplace_back(loop.context.get_executor(), *loop.clock,
                          replicate::send_shard(*connections[lane], *loop.clock, std::move(source),
                                                replicate::TransferOptions()));
      }
      for (auto& each : sent) bench::must(loop.run(each.result()));
    });
  };
  const auto one_stream = [&] { return iperf_rate(hosts, harness.bytes(), 1); };
  const auto best = [&] { return std::max(one_stream(), iperf_rate(hosts, harness.bytes(), 2)); };
  const bench::Bar bar{"B9", "replication, verified / iperf3, best of 1 and 2 streams", 0.75, 0.60};
  const bench::Bar bar_of_one{"B9b", "replication, verified / iperf3, 1 stream", 0.90, 0.75};
  harness.compare(bar, ours, best);
  harness.compare(bar_of_one, ours, one_stream);
  return harness.finish();
}
