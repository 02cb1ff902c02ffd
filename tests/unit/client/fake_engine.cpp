#include "unit/client/fake_engine.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::test {

namespace control = wire::control;

namespace {

const Digest fake_run{1, 2};

client::MappedSlot slot_of(std::uint64_t generation, std::vector<std::byte> bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {generation, std::span(*memory), memory};
}

}  // namespace

// --- Slots ---

void FakeNode::make_slots(std::uint64_t bytes) {
  ++generation_;
  slots_.clear();
  free_.clear();
  for (std::uint32_t i = 0; i < slot_count; ++i) {
    slots_.push_back(slot_of(generation_, std::vector<std::byte>(bytes, std::byte{0xdd})));
    free_.insert(i);
  }
}

void FakeNode::show_slots() {
  for (client::MappedSlot& slot : slots_) slot.is_for_restore = makes_first;
  state().slots_ready(slots_);
}

void FakeNode::answer_layout() {
  if (slots_error) return state().slots_failed(Error(*slots_error));
  if (is_slow || layouts.empty()) return;
  const std::uint64_t needed = layouts.back().slot_bytes;
  const bool is_large_enough = !slots_.empty() && slots_.front().bytes.size() >= needed;
  if (!is_large_enough || grants_late) make_slots(needed);
  show_slots();
  if (!grants_late) grant_free();
}

void FakeNode::grant_free() {
  if (!is_running_ || is_away_ || makes_first) return;
  for (const std::uint32_t slot : free_) state().slot_granted(slot);
}

void FakeNode::take(control::SetLayout& message) {
  layouts.push_back(std::move(message.layout));
  if (!std::exchange(takes_time, false)) answer_layout();
}

void FakeNode::take(control::Begin& message) {
  CKPT_ASSERT(message.generation == generation_);
  CKPT_ASSERT(free_.erase(message.slot) == 1);
  taken.push_back(message.step);
}

void FakeNode::take(control::Filled& message) {
  if (message.generation != generation_) return;  // From a daemon that died.
  keep(message);
  state().level_reached(message.step, reached);
  // The next step must be written anew, down to the last byte.
  std::ranges::fill(slots_[message.slot].bytes, std::byte{0xdd});
  if (holds_slots) return;
  free_.insert(message.slot);
  state().slot_granted(message.slot);
}

void FakeNode::keep(control::Filled& filled) {
  format::ShardRecord record;
  record.job = "fake";
  record.run = fake_run;
  record.model = format::fingerprint(layouts.back());
  record.id = {{timeline_, filled.step}, 0};
  record.layout = layouts.back();
  CKPT_ASSERT(record.layout.version == filled.layout_version);
  record.blob_bytes = filled.blob_bytes;
  record.blobs = std::move(filled.blobs);
  record.blob_names = std::move(filled.blob_names);
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = filled.chunk_bytes;
  record.chunk_crcs = std::move(filled.chunk_crcs);
  const auto bytes = slots_[filled.slot].bytes.first(record.bytes);
  if (record.chunk_crcs.empty()) {
    for (std::uint64_t at = 0; at < record.bytes; at += record.chunk_bytes)
      record.chunk_crcs.push_back(
          crc32(bytes.subspan(at, std::min(record.chunk_bytes, record.bytes - at))));
  }
  FakeShard shard;
  shard.record = std::make_shared<const format::ShardRecord>(std::move(record));
  shard.bytes.assign(bytes.begin(), bytes.end());
  shards.push_back(std::move(shard));
  copies.push_back(std::move(filled.copies));
}

void FakeNode::take(control::Abandon& message) {
  if (message.generation != generation_) return;
  ++abandoned;
  free_.insert(message.slot);
  state().slot_granted(message.slot);
}

void FakeNode::take(control::Skipped& message) {
  skipped.push_back(message.step);
}

// --- The beginning ---

void FakeNode::begin(std::uint64_t ask, std::optional<format::StepId> restored) {
  is_running_ = true;
  control::Begun begun;
  begun.ask = ask;
  begun.timeline = timeline_;
  begun.restored = restored;
  if (!restored) begun.reason = nothing_reason;
  if (restored) begun.newest_seen = newest_seen;
  state().begun(std::move(begun));
  grant_free();
}

void FakeNode::take(control::StartFresh& message) {
  ++fresh_starts;
  if (message.is_anew) ++timeline_;
  if (!message.is_implied || shards.empty()) return begin(message.ask, std::nullopt);
  restore_.ask = message.ask;
  refuse(Error(Errc::invalid_argument, "the job has a step: call start_fresh()"));
}

void FakeNode::take(control::AskRestore& message) {
  restore_ = {message.ask, message.wanted, shards.size()};
  asked.push_back(message);
  if (shards.empty() && !message.wanted) return begin(message.ask, std::nullopt);
  if (!is_slow) offer_next();
}

// In a Slot of its own, as the shard of a peer or of storage would come.
void FakeNode::offer_next() {
  while (restore_.next > 0) {
    const FakeShard& shard = shards[--restore_.next];
    if (restore_.wanted && shard.record->id.at.step != *restore_.wanted) continue;
    auto with_shard = slots_;
    with_shard.push_back(slot_of(generation_, shard.bytes));
    with_shard.back().is_for_restore = true;
    state().slots_ready(with_shard);
    control::Offer offer;
    offer.ask = restore_.ask;
    offer.offer = restore_.next;
    offer.slot = static_cast<std::uint32_t>(slots_.size());
    offer.record = shard.record;
    offer.source_name = "fake memory";
    return state().restore_offered(std::move(offer));
  }
  refuse(bad_copies.empty() ? Error(Errc::not_found, "there is no step to restore")
                            : Error(Errc::corruption, "no good copy is left"));
}

void FakeNode::refuse(Error error) {
  is_running_ = false;
  control::Begun begun;
  begun.ask = restore_.ask;
  begun.result = fail(std::move(error));
  state().begun(std::move(begun));
}

void FakeNode::take(control::RestoreResult& message) {
  const format::StepId at = shards.at(message.offer).record->id.at;
  if (dies_after_copying) {
    shards.clear();
    return refuse(Error(Errc::not_found, "there is no step to restore"));
  }
  if (message.result) {
    ++timeline_;
    show_slots();
    return begin(restore_.ask, at);
  }
  bad_copies.push_back(at.step);
  const Errc code = message.result.error().code();
  code == Errc::corruption ? offer_next() : refuse(Error(code, "a rank refused"));
}

void FakeNode::take(control::AskStatus&) {
  state().notify(control::Answer{{}, "{}"});
}

void FakeNode::take(control::Close& close) {
  close_deadline = close.deadline;
  ++closes;
  state().closed(closing);
}

// --- The events that a test lets happen ---

void FakeNode::finish_slots() {
  const std::lock_guard lock(mutex);
  is_slow = makes_first = false;
  answer_layout();
}

void FakeNode::free_slot(std::uint32_t slot) {
  const std::lock_guard lock(mutex);
  free_.insert(slot);
  state().slot_granted(slot);
}

void FakeNode::announce(Step step) {
  const std::lock_guard lock(mutex);
  state().next_capture(step);
}

void FakeNode::go_away() {
  const std::lock_guard lock(mutex);
  is_away_ = true;
  slots_.clear();
  free_.clear();
  state().lost("the daemon is gone");
}

void FakeNode::come_back() {
  const std::lock_guard lock(mutex);
  is_away_ = false;
  state().attached(fake_run);
  answer_layout();
}

// --- One session ---

FakeEngine::FakeEngine(std::shared_ptr<FakeNode> node, std::shared_ptr<client::LinkState> state)
    : node_(std::move(node)), state_(std::move(state)) {
  const std::lock_guard lock(node_->mutex);
  node_->state_ = state_;
  node_->is_running_ = false;
  state_->attached(fake_run);
}

FakeEngine::~FakeEngine() {
  if (late_grants_.joinable()) late_grants_.join();
}

void FakeEngine::post(control::Call call) {
  if (std::holds_alternative<control::Filled>(call) && node_->on_filled) node_->on_filled();
  const std::lock_guard lock(node_->mutex);
  if (auto* skipped = std::get_if<control::Skipped>(&call)) skipped->step = state_->next_skip();
  if (node_->is_away_ && !std::holds_alternative<control::Skipped>(call)) return;
  std::visit([&](auto& each) { node_->take(each); }, call);
  if (!node_->grants_late || !std::holds_alternative<control::SetLayout>(call)) return;
  node_->grants_late = false;
  late_grants_ = std::thread([this] {
    const std::lock_guard later(node_->mutex);
    node_->grant_free();
  });
}

std::unique_ptr<client::SessionLink> link_to(std::shared_ptr<FakeNode> node) {
  auto state = std::make_shared<client::LinkState>("rank 0 of job fake");
  auto engine = std::make_unique<FakeEngine>(std::move(node), state);
  return std::make_unique<client::SessionLink>(std::move(state), std::move(engine));
}

}  // namespace ckpt::test
