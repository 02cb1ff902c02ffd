#include "client/slot_readiness.hpp"

#include <chrono>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds try_interval{30};

bool are_coming(const Status& slots) {
  return slots || slots.error().code() == Errc::unavailable;
}

}  // namespace

Result<bool> SlotReadiness::update() {
  const bool has_blobs = !blobs_.is_empty();
  if (registry_version_ == registry_.version() && has_blobs == has_blob_member_) return false;
  const std::uint32_t version = registry_version_ ? layout_.version : 0;
  auto specs = registry_.specs();
  if (options_.skip_unchanged) {
    const Changes changes = registry_.changes(specs);
    specs = with_changes_apart(std::move(specs), changes);
  }
  CKPT_TRY(
      format::Layout layout,
      format::make_layout(specs, options_.rank, has_blobs ? options_.blob_capacity : 0, version));
  registry_version_ = registry_.version();
  has_blob_member_ = has_blobs;
  if (layout == layout_) return true;  // Only addresses changed.
  layout_ = std::move(layout);
  ++layout_.version;
  is_sent_ = false;
  failure_.reset();
  return true;
}

Result<std::optional<format::Layout>> SlotReadiness::wanted(const SavedNames& names) const {
  if (!registry_.has_copies() && names.empty()) return std::optional<format::Layout>();
  CKPT_TRY(const auto specs, names.of(registry_.wanted()));
  CKPT_TRY(format::Layout wanted, format::make_layout(specs, options_.rank, layout_.blob_capacity));
  return std::optional(std::move(wanted));
}

Status SlotReadiness::send(Deadline deadline) {
  CKPT_ASSERT(registry_version_.has_value());
  Status slots = link_.set_layout(layout_, deadline);
  room_asked_ = are_coming(slots) ? layout_.slot_bytes : 0;
  return slots;
}

Status SlotReadiness::ask(Deadline deadline) {
  if (is_sent_ && link_.is_ready()) return {};
  Status slots = send(deadline);
  is_sent_ = are_coming(slots);
  return slots;
}

// A save that may wait asks again, even if a restore has asked before. A failed request is repeated
// now and then; until then, the reason stays the same.
Status SlotReadiness::ask_for_save(Deadline deadline) {
  const auto now = steady_clock::now();
  Status slots;
  const bool may_wait = deadline > now && !link_.is_ready();
  if (!is_sent_ || may_wait || (failure_ && now >= next_try_)) {
    next_try_ = now + try_interval;
    slots = send(deadline);
    is_sent_ = true;
  } else if (!link_.is_ready()) {
    slots = link_.slots_status();
  }
  if (slots) {
    failure_.reset();
  } else if (slots.error().code() != Errc::unavailable) {
    failure_.emplace(slots.error());
  } else if (failure_) {
    return fail(Error(*failure_));
  }
  return slots;
}

Status SlotReadiness::ask_in_background() {
  Status slots = ask(steady_clock::now());
  const bool is_over_budget = !slots && slots.error().code() == Errc::exhausted;
  return are_coming(slots) || is_over_budget ? Status() : slots;
}

Status SlotReadiness::ask_for_restore(bool wants_layout) {
  const bool is_known = is_sent_ || !wants_layout;
  return is_known && layout_.slot_bytes <= room_asked_ ? Status() : ask_in_background();
}

Deadline SlotReadiness::save_deadline() {
  const bool may_wait = !std::exchange(has_waited_, true);
  return may_wait ? deadline_after(options_.open_deadline) : steady_clock::now();
}

}  // namespace ckpt::client
