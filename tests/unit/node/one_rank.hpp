// OneRank: an engine with a disk in memory, and the only trainer of its job, driven by hand.
//
// The trainer's tensor holds bytes that follow from the step, so that the bytes of
// a restore show which step they belong to.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <string>

#include "base/checksum.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_compute.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::test {

inline constexpr std::uint64_t small_chunk_bytes = 4 * KiB;

// For shards of several Chunks.
inline node::EngineOptions small_chunks() {
  node::EngineOptions options;
  options.chunk_bytes = small_chunk_bytes;
  return options;
}

class OneRank : public Rank {
 public:
  explicit OneRank(MemoryDisk& used, std::uint64_t bytes = 3 * KiB,
                   node::EngineOptions options = {})
      : disk(used), clock(context), files(disk, &clock), network(1), tensor_bytes(bytes) {
    front = network.add_node("A", clock);
    options.name = "A";
    options.boot = 7 + used.operations();  // Another one for each on one disk.
    options.memory_budget = 16 * MiB;
    engine = std::make_unique<node::Engine>(
        context.get_executor(), node::Seams{clock, memory, files, *front, &compute}, options);
    request.job = "job";
    request.dir = "/scratch/job";
    request.nodes = {{"A", "", ""}};
    request.node = "A";
    request.own_slots = 4;
  }
  ~OneRank() override {
    (void)finish(clock, start(context, engine->stop(std::chrono::seconds(5))));
    clock.advance(std::chrono::seconds(10));  // Sleeping coroutines see that it is over.
  }

  // Attaches, and tells the layout. Errors: those of attach.
  Status attach() {
    CKPT_CHECK(attach_only());
    return tell_layout(tensor_bytes, 1);
  }
  Status attach_only() {
    CKPT_TRY(const auto attached, finish(clock, start(context, engine->attach(request, *this))));
    session = attached.session;
    return {};
  }
  Status tell_layout(std::uint64_t bytes, std::uint32_t version) {
    tensor_bytes = bytes;
    const format::TensorSpec spec{"weight", DType::u8, {static_cast<std::int64_t>(bytes)}, "", ""};
    CKPT_TRY(layout, format::make_layout(std::span(&spec, 1), 0, 0, version));
    return engine->call(session, control::SetLayout{layout});
  }
  Status begin_fresh() {
    CKPT_CHECK(attach());
    CKPT_CHECK(engine->call(session, control::StartFresh{1}));
    REQUIRE(pass_until([this] { return answer.has_value() && granted.size() >= 2; }));
    return {};
  }
  void begin_and_store_two_steps() {
    request.save_storage_interval.steps = 1;
    REQUIRE(begin_fresh());
    for (const std::uint64_t step : {1, 2}) {
      capture(Step{step});
      REQUIRE(pass_until([&] { return durable == Step{step}; }));
    }
  }
  // The step that was restored, after its bytes were compared with those that were captured then.
  Result<Step> restore() {
    CKPT_CHECK(attach());
    answer.reset();  // That of an earlier start.
    CKPT_CHECK(engine->call(session, control::AskRestore{1, std::nullopt}));
    REQUIRE(pass_until([this] { return answer.has_value(); }));
    if (!answer->result) return fail(Error(answer->result.error()));
    if (!answer->restored) return fail(Errc::not_found, "nothing was restored");
    return answer->restored->step;
  }
  Status begin_capture(Step step) {
    REQUIRE_FALSE(granted.empty());
    CKPT_CHECK(engine->call(session, begin_of(granted.front(), step)));
    filling = granted.front();
    granted.pop_front();
    fill(tensor_in(filling), step);
    return {};
  }
  Status end_capture(Step step) {
    control::Filled filled = filled_of(filling, step);
    filled.layout_version = layout.version;
    return engine->call(session, std::move(filled));
  }
  void capture(Step step) {
    REQUIRE(begin_capture(step));
    REQUIRE(end_capture(step));
  }
  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock.after(std::chrono::minutes(10));
    clock.poll();
    while (!claim() && clock.now() < limit && clock.advance_to_next()) {
    }
    return claim();
  }
  static void fill(std::span<std::byte> bytes, Step step) {
    Random content(number(step));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(content.next());
  }
  // As the library does while it copies.
  bool matches_checksums(const control::Offer& offer) {
    const auto bytes = bytes_of(offer.slot);
    for (std::size_t index = 0; index < offer.record->chunk_crcs.size(); ++index) {
      const format::Extent chunk = offer.record->chunk(index);
      if (crc32(bytes.subspan(chunk.offset, chunk.bytes)) != offer.record->chunk_crcs[index])
        return false;
    }
    return true;
  }
  std::span<std::byte> bytes_of(std::uint32_t slot) const { return slots.at(slot).memory->bytes(); }
  std::span<std::byte> tensor_in(std::uint32_t slot) {
    const format::Extent extent = layout.tensors.at(0).extent;
    return bytes_of(slot).subspan(extent.offset, extent.bytes);
  }

  void tell(control::Event event) override {
    const auto* failed = std::get_if<control::SlotsFailed>(&event);
    if (failed != nullptr && !may_lack_slots) FAIL(failed->result.error().message());
    Rank::tell(std::move(event));
  }
  void offered(control::Offer offer) override {
    if (keeps_offers) return offers.push_back(std::move(offer));
    if (verifies_offers && !matches_checksums(offer)) {
      ++offers_refused;
      asio::post(context, [this, number = offer.offer] {
        REQUIRE(answer_offer(number, fail(Errc::corruption, "a flipped bit")));
      });
      return;
    }
    std::vector<std::byte> expected(tensor_bytes);
    fill(expected, offer.record->id.at.step);
    is_wrong = is_wrong || !std::ranges::equal(expected, tensor_in(offer.slot));
    asio::post(context, [this, number = offer.offer] { REQUIRE(answer_offer(number, {})); });
  }
  Status answer_offer(std::uint64_t number, Status result) {
    return engine->call(session, control::RestoreResult{number, std::move(result)});
  }

  MemoryDisk& disk;
  asio::io_context context;
  FakeClock clock;
  MemoryFileSystem files;
  HeapSource memory;
  SimCompute compute{clock, 1};
  SimNetwork network;
  std::unique_ptr<wire::Network> front;
  std::unique_ptr<node::Engine> engine;
  node::AttachRequest request;
  format::Layout layout;
  std::uint64_t tensor_bytes;
  std::uint32_t filling = 0;
  bool keeps_offers = false;  // And does not answer them.
  std::vector<control::Offer> offers;
  bool may_lack_slots = false;
  bool verifies_offers = false;
  std::size_t offers_refused = 0;
  bool is_wrong = false;  // Bytes were offered that were not captured for their step.
};

}  // namespace ckpt::test
