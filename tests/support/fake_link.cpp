#include "support/fake_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::test {

void FakeLink::make_slots(std::uint64_t bytes) {
  node_->slots.clear();
  node_->free_slots.clear();
  for (std::uint32_t i = 0; i < node_->slot_count; ++i) {
    node_->slots.push_back(std::make_unique<std::vector<std::byte>>(bytes, std::byte{0xdd}));
    node_->free_slots.push_back(i);
  }
}

Status FakeLink::set_layout(const format::Layout& layout, client::Deadline deadline) {
  const std::lock_guard lock(node_->mutex);
  if (deadline > std::chrono::steady_clock::now()) node_->takes_time = false;
  node_->layouts.push_back(layout);
  return slots_status_locked();
}

Status FakeLink::slots_status() const {
  const std::lock_guard lock(node_->mutex);
  return slots_status_locked();
}

Status FakeLink::slots_status_locked() const {
  if (node_->slots_error) return fail(Error(*node_->slots_error));
  if (node_->is_away || node_->is_slow || node_->takes_time || node_->layouts.empty())
    return fail(Errc::unavailable, "the Slots are not there yet");
  const std::uint64_t needed = node_->layouts.back().slot_bytes;
  if (node_->slots.empty() || node_->slots.front()->size() < needed)
    const_cast<FakeLink*>(this)->make_slots(needed);
  return {};
}

Status FakeLink::start_fresh(client::Deadline) {
  ++node_->fresh_starts;
  return {};
}

Status FakeLink::wait_granted(client::Deadline) {
  node_->grants_late = false;
  return {};
}

bool FakeLink::is_ready() const {
  return slots_status().has_value();
}

client::Link::Identity FakeLink::identity() const {
  return {Digest{1, 2}, node_->timeline};
}

std::optional<client::TakenSlot> FakeLink::take_slot(Step step) {
  const std::lock_guard lock(node_->mutex);
  if (node_->free_slots.empty() || node_->grants_late) return std::nullopt;
  client::TakenSlot granted;
  granted.slot = node_->free_slots.front();
  granted.bytes = *node_->slots[granted.slot];
  node_->free_slots.pop_front();
  node_->taken.push_back(step);
  return granted;
}

void FakeLink::filled(const client::TakenSlot& granted, node::Filled filled) {
  if (node_->on_filled) node_->on_filled();
  const std::lock_guard lock(node_->mutex);
  format::ShardRecord record;
  record.job = "fake";
  record.run = Digest{1, 2};
  record.model = format::fingerprint(node_->layouts.back());
  record.id = {{node_->timeline, filled.step}, 0};
  record.layout = node_->layouts.back();
  CKPT_ASSERT(record.layout.version == filled.layout_version);
  record.blob_bytes = filled.blob_bytes;
  record.blobs = std::move(filled.blobs);
  record.blob_names = std::move(filled.blob_names);
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = filled.chunk_bytes;
  record.chunk_crcs = std::move(filled.chunk_crcs);
  const auto bytes = granted.bytes.first(record.bytes);
  if (record.chunk_crcs.empty()) {
    for (std::uint64_t at = 0; at < record.bytes; at += record.chunk_bytes)
      record.chunk_crcs.push_back(
          crc32(bytes.subspan(at, std::min(record.chunk_bytes, record.bytes - at))));
  }
  FakeShard shard;
  shard.record = std::make_shared<const format::ShardRecord>(std::move(record));
  shard.bytes.assign(bytes.begin(), bytes.end());
  node_->shards.push_back(std::move(shard));
  node_->counters.captured = filled.step;
  // What comes next must be written anew, down to the last byte.
  std::fill(granted.bytes.begin(), granted.bytes.end(), std::byte{0xdd});
  if (!node_->holds_slots) node_->free_slots.push_back(granted.slot);
}

void FakeLink::abandon(const client::TakenSlot& granted) {
  const std::lock_guard lock(node_->mutex);
  ++node_->abandoned;
  node_->free_slots.push_back(granted.slot);
}

Status FakeLink::ask_restore(std::optional<Step> wanted, client::Deadline) {
  wanted_ = wanted;
  return node_->shards.empty() ? Status() : slots_status();
}

Result<Restored> FakeLink::restore(const CopyOut& copy_out, client::Deadline) {
  for (std::size_t i = node_->shards.size(); i-- > 0;) {
    const FakeShard& shard = node_->shards[i];
    const Step step = shard.record->id.at.step;
    if (wanted_ && step != *wanted_) continue;
    node::SlotOffer offer;
    offer.record = shard.record;
    const Status copied = copy_out(offer, shard.bytes);
    if (node_->dies_after_copying) {
      node_->shards.clear();
      return fail(Errc::not_found, "there is no step to restore");
    }
    if (copied) {
      Restored restored;
      restored.step = step;
      restored.timeline = ++node_->timeline;
      restored.source_name = "fake memory";
      restored.bytes = shard.record->bytes;
      return restored;
    }
    node_->bad_copies.push_back(step);
    if (copied.error().code() != Errc::corruption)
      return fail(copied.error().code(), "a rank refused");
  }
  if (!node_->bad_copies.empty()) return fail(Errc::corruption, "no good copy is left");
  return fail(Errc::not_found, "there is no step to restore");
}

Status FakeLink::restored_ok(Step step) {
  node_->told_restored.push_back(step);
  return {};
}

Status FakeLink::wait(Step step, Level level, client::Deadline) {
  if (level == Level::captured && counters().captured >= step) return {};
  const std::lock_guard lock(node_->mutex);
  if (std::ranges::count(node_->skipped, step) != 0)
    return fail(Errc::not_found, fmt::format("step {} was skipped by this rank", number(step)));
  return fail(Errc::unavailable, "the deadline passed");
}

client::LinkCounters FakeLink::counters() const {
  const std::lock_guard lock(node_->mutex);
  return node_->counters;
}

Status FakeLink::close(client::Deadline) {
  ++node_->closes;
  return node_->closing;
}

}  // namespace ckpt::test
