// TransferScene: a shard on node A, an engine's memory on node B, and the network between them.
//
// Threads: one.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <vector>

#include "replicate/peer_service.hpp"
#include "replicate/replica_sender.hpp"
#include "sample_shard.hpp"
#include "support/sim_pair.hpp"

namespace ckpt::test {

// Sink: grants one shard's memory, between two guards that nobody may write.
class Sink : public replicate::ReplicaSink {
 public:
  static constexpr std::size_t guard_bytes = 64;
  static constexpr std::byte guard{0xa5};

  Result<replicate::ReplicaTarget> reserve(const replicate::ShardOffer& offer) override {
    ++offers;
    if (refusal) return fail(Error(*refusal));
    if (!hold.expired()) return fail(Errc::unavailable, "another connection still brings it");
    from = offer.from;
    timeline = offer.timeline;
    if (memory_.empty() || record->chunk_crcs != offer.record->chunk_crcs) {
      memory_.assign(offer.record->bytes + 2 * guard_bytes, guard);
      applied = replicate::ChunkSet(offer.record->chunk_crcs.size());
    }
    record = offer.record;
    replicate::ReplicaTarget target;
    target.ticket = ++ticket;
    target.bytes = bytes();
    target.applied = applied;
    auto held = std::make_shared<int>(0);
    hold = held;
    target.hold = std::move(held);
    offered_base = offer.base;
    if (base && offer.base && offer.base->digest == base->digest) target.base = base->source();
    return target;
  }
  void base_damaged(const replicate::SealedShard& granted, std::size_t chunk) override {
    REQUIRE(base);
    REQUIRE(granted.lease == base->memory);
    damaged_of_base = chunk;
    base.reset();  // As the engine, which quarantines it.
  }
  void chunk_applied(std::uint64_t for_ticket, std::size_t index) override {
    REQUIRE(for_ticket == ticket);
    REQUIRE(applied.insert(index));
    const format::Extent extent = record->chunk(index);
    REQUIRE(crc32(bytes().subspan(extent.offset, extent.bytes)) == record->chunk_crcs[index]);
  }
  Status sealed(std::uint64_t for_ticket) override {
    REQUIRE(for_ticket == ticket);
    REQUIRE(hold.expired());
    REQUIRE(applied.is_full());
    ++seals;
    if (seal_failure) return fail(Error(*seal_failure));
    return {};
  }
  void abandoned(std::uint64_t for_ticket) override {
    REQUIRE(for_ticket == ticket);
    REQUIRE(hold.expired());
    ++abandonments;
  }

  std::span<std::byte> bytes() {
    return std::span(memory_).subspan(guard_bytes, memory_.size() - 2 * guard_bytes);
  }
  bool guards_are_whole() const {
    for (std::size_t at = 0; at < guard_bytes && !memory_.empty(); ++at)
      if (memory_[at] != guard || memory_[memory_.size() - 1 - at] != guard) return false;
    return true;
  }
  bool holds(const Shard& shard) {
    const auto held = bytes();
    return std::equal(held.begin(), held.end(), shard.memory->begin(), shard.memory->end());
  }

  std::optional<Shard> base;  // An earlier step that it has.
  std::optional<replicate::CopyName> offered_base;
  std::optional<std::size_t> damaged_of_base;
  std::shared_ptr<const format::ShardRecord> record;
  replicate::ChunkSet applied;
  std::weak_ptr<void> hold;
  wire::PeerIdentity from;
  std::uint64_t timeline = 0;
  std::uint64_t ticket = 100;
  int offers = 0;
  int seals = 0;
  int abandonments = 0;
  std::optional<Error> refusal;
  std::optional<Error> seal_failure;

 private:
  Bytes memory_;
};

class Provider : public replicate::ShardProvider {
 public:
  Result<replicate::SealedShard> lease(const std::string& job, const format::ShardId& id,
                                       const Digest& digest) override {
    REQUIRE(job == "gpt2");
    if (!shard || shard->record->id != id || shard->digest != digest)
      return fail(Errc::not_found, "no such shard here");
    return shard->source();
  }
  void damaged(const std::string&, const replicate::SealedShard& copy, std::size_t chunk) override {
    REQUIRE(copy.lease == shard->memory);
    damaged_chunks.push_back(chunk);
  }

  std::shared_ptr<Shard> shard;
  std::vector<std::size_t> damaged_chunks;
};

// Node B serves one connection from A at a time; `connect` makes the next.
struct TransferScene {
  explicit TransferScene(std::uint64_t seed = 1, SimNetworkOptions options = {})
      : pair(seed, options) {}

  void connect() {
    const auto joined = pair.join();
    at_a = joined.at_a;
    at_b = joined.at_b;
    wire::PeerIdentity peer;
    peer.job = "gpt2";
    peer.node = "A";
    replicate::ServiceOptions options;
    options.stall = stall;
    options.compute = service_compute;
    serving =
        start(pair.context, replicate::serve_peer(at_b, pair.clock, peer, sink, provider, options));
  }
  replicate::TransferOptions options() const {
    replicate::TransferOptions options;
    options.timeline = 1;
    options.stall = stall;
    return options;
  }
  Status send(const Shard& shard) {
    const auto sent = pair.run(replicate::send_shard(*at_a, pair.clock, shard.source(), options()));
    if (!sent) return fail(sent.error());
    if (*sent == replicate::Delivery::declined) return fail(Errc::not_found, "declined");
    return {};
  }
  // Sends what has changed since `base`, which is ours; counts the Chunks that were sent and named.
  Status send_changes(const Shard& shard, const Shard& base) {
    replicate::TransferOptions sending = options();
    sending.on_chunk = [this](std::size_t) { ++chunks_sent; };
    sending.on_same = [this](std::size_t) { ++chunks_named; };
    const auto sent = pair.run(replicate::send_changes(*at_a, pair.clock, shard.source(),
                                                       {base.source(), base.digest}, sending));
    if (!sent) return fail(sent.error());
    if (*sent == replicate::Delivery::declined) return fail(Errc::not_found, "declined");
    return {};
  }
  Status fetch(const Shard& shard, std::span<std::byte> target, replicate::ChunkSet& have) {
    replicate::TransferOptions fetching = options();
    fetching.on_chunk = [&have](std::size_t index) { REQUIRE(have.insert(index)); };
    return pair.run(
        replicate::fetch_shard(*at_a, pair.clock, shard.record, target, have, fetching));
  }
  Result<void> service_end() { return finish(pair.clock, *serving); }

  SimPair pair;
  Sink sink;
  Provider provider;
  Compute* service_compute = nullptr;  // From the next connection on.
  std::shared_ptr<wire::Connection> at_a;
  std::shared_ptr<wire::Connection> at_b;
  std::optional<Pending<void>> serving;
  Duration stall = std::chrono::seconds(10);
  std::size_t chunks_sent = 0;
  std::size_t chunks_named = 0;
};

}  // namespace ckpt::test
