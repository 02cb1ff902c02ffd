#include "bench/receiver.hpp"

#include <cstdio>

#include "arena/shared_slot_memory.hpp"
#include "base/assert.hpp"
#include "base/started.hpp"
#include "bench/loop.hpp"
#include "bench/must.hpp"
#include "os/hash_threads.hpp"
#include "replicate/peer_service.hpp"
#include "wire/tcp_network.hpp"

namespace bench {

using namespace ckpt;

namespace {

// Grants the same memory for every offer: the Slot of the step before is free again.
class Sink final : public replicate::ReplicaSink, public replicate::ShardProvider {
 public:
  explicit Sink(std::span<std::byte> slot) : slot_(slot) {}

  Result<replicate::ReplicaTarget> reserve(const replicate::ShardOffer& offer) override {
    if (offer.record->bytes > slot_.size()) return fail(Errc::exhausted, "the Slot is smaller");
    replicate::ReplicaTarget target;
    target.ticket = ++ticket_;
    target.bytes = slot_;
    target.applied = replicate::ChunkSet(offer.record->chunk_crcs.size());
    return target;
  }
  void base_damaged(const replicate::SealedShard&, std::size_t) override {}  // It grants none.
  void chunk_applied(std::uint64_t, std::size_t) override {}
  Status sealed(std::uint64_t) override { return {}; }
  void abandoned(std::uint64_t) override {}
  Result<replicate::SealedShard> lease(const std::string&, const format::ShardId&,
                                       const Digest&) override {
    return fail(Errc::not_found, "nothing is fetched here");
  }
  void damaged(const std::string&, const replicate::SealedShard&, std::size_t) override {}

 private:
  std::span<std::byte> slot_;
  std::uint64_t ticket_ = 0;
};

}  // namespace

int receive_replicas(const std::string& address, std::size_t bytes) {
  Loop loop;
  arena::SharedMemorySource source;
  std::vector<std::unique_ptr<arena::SlotMemory>> slots;
  std::vector<std::unique_ptr<Sink>> sinks;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    slots.push_back(must(loop.run(source.allocate(bytes))));
    sinks.push_back(std::make_unique<Sink>(slots.back()->bytes()));
  }
  os::HashThreads hashes;  // As ckptd has them.
  wire::TcpNetwork network(loop.context.get_executor(), *loop.clock);
  const auto listener = must(loop.run(network.listen(address, no_deadline)));
  std::printf("%s\n", listener->address().c_str());
  std::fflush(stdout);
  wire::PeerIdentity peer;
  peer.job = "bench";
  peer.node = "near";
  replicate::ServiceOptions options;
  options.compute = &hashes;
  std::vector<Started<void>> served;
  for (const auto& sink : sinks) {
    auto connection = must(loop.run(listener->accept()));
    served.emplace_back(
        loop.context.get_executor(), *loop.clock,
        replicate::serve_peer(std::move(connection), *loop.clock, peer, *sink, *sink, options));
  }
  for (auto& each : served) must(loop.run(each.result()));
  return 0;
}

}  // namespace bench
