#include "arena/slot.hpp"

namespace ckpt::arena {

Slot::Slot(std::unique_ptr<SlotMemory> memory) : memory_(std::move(memory)) {
  CKPT_ASSERT(memory_ != nullptr);
  CKPT_ASSERT(!memory_->bytes().empty());
}

void Slot::begin_fill(format::ShardId id) {
  CKPT_ASSERT(state_ == State::free);
  CKPT_ASSERT(lease_count_ == 0);
  id_ = id;
  state_ = State::filling;
}

void Slot::filled() {
  CKPT_ASSERT(state_ == State::filling);
  state_ = State::filled;
}

void Slot::note_copies(std::vector<format::CopyNote> copies) {
  CKPT_ASSERT(state_ == State::filled);
  if (!copies.empty())
    copies_ = std::make_shared<const std::vector<format::CopyNote>>(std::move(copies));
}

void Slot::seal(std::shared_ptr<const format::ShardRecord> record) {
  CKPT_ASSERT(state_ == State::filled);
  CKPT_ASSERT(record != nullptr);
  CKPT_ASSERT(record->bytes <= capacity());
  CKPT_ASSERT(record->id == id_);
  record_ = std::move(record);
  digest_ = format::digest_of(*record_);
  state_ = State::sealed;
}

void Slot::abandon() {
  CKPT_ASSERT(state_ == State::filling || state_ == State::filled);
  CKPT_ASSERT(lease_count_ == 0);
  become_free();
}

void Slot::quarantine() {
  CKPT_ASSERT(state_ == State::sealed);
  state_ = State::quarantined;
}

void Slot::retire() {
  CKPT_ASSERT(state_ == State::sealed || state_ == State::quarantined);
  is_retiring_ = true;
  if (lease_count_ == 0) become_free();
}

void Slot::become_free() {
  CKPT_ASSERT(lease_count_ == 0);
  record_.reset();
  digest_ = {};
  id_ = {};
  copies_.reset();
  is_retiring_ = false;
  state_ = State::free;
}

Lease::Lease(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {
  CKPT_ASSERT(slot_ != nullptr);
  CKPT_ASSERT(slot_->state_ == Slot::State::sealed);
  CKPT_ASSERT(!slot_->is_retiring_);
  record_ = slot_->record_;
  ++slot_->lease_count_;
}

void Lease::reset() {
  if (!slot_) return;
  CKPT_ASSERT(slot_->lease_count_ > 0);
  if (--slot_->lease_count_ == 0 && slot_->is_retiring_) slot_->become_free();
  slot_.reset();
  record_.reset();
}

std::span<const std::byte> Lease::bytes() const {
  CKPT_ASSERT(slot_ != nullptr);
  return slot_->memory_->bytes().first(record_->bytes);
}

std::vector<os::FileSpan> Lease::file_spans(format::Extent extent) const {
  CKPT_ASSERT(slot_ != nullptr);
  CKPT_ASSERT(extent.end() <= record_->bytes);
  return slot_->memory_->file_spans(extent.offset, extent.bytes);
}

}  // namespace ckpt::arena
