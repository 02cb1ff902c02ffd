#include "client/running_capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "format/safetensors_header.hpp"
#include "format/torch_archive.hpp"

namespace ckpt::client {

namespace {

// Ending a capture means combining checksums and posting one message. Longer: the machine is stuck.
constexpr std::chrono::seconds capture_end_deadline{10};
// A save waits this long for copies of a GPU that have just ended: `ckpt-gpu` looks for them every
// 0.05 to 0.8 ms.
constexpr std::chrono::milliseconds gpu_end_patience{1};

// The Slots that the engine makes for us, if captures look at what these still hold.
std::size_t slots_kept(const Options& options) {
  if (!options.skip_unchanged) return 0;
  return std::max(options.own_slots,
                  options.dir.empty() ? arena::own_slots_min : arena::own_slots_with_storage);
}

}  // namespace

Status RunningCapture::plan(const format::Layout& layout, const TensorRegistry& registry) {
  if (snapshotter_) return {};
  const Options& options = parts_.options;
  format::HeaderFacts facts;
  facts.job = options.job;
  facts.run = to_hex(parts_.link.identity().run);
  facts.rank = options.rank;
  facts.world_size = options.world_size;
  layout_ = layout;
  CKPT_TRY(auto header, format::render_header(layout_, facts));
  const auto sources = registry.sources(layout_);
  copies_ = HeldCopies(registry.held_copies());
  const auto hashed = copies_.sources();
  snapshot::CaptureListener& listener = *this;
  snapshotter_ = std::make_unique<snapshot::Snapshotter>(
      snapshot::Snapshotter::Plan{layout_, sources, std::move(header), parts_.devices.devices(),
                                  parts_.chunk_bytes, hashed, slots_kept(options)},
      listener);
  return {};
}

Status RunningCapture::begin(const TakenSlot& slot, Step step, Stream stream, BlobStore& blobs) {
  CKPT_ASSERT(snapshotter_ != nullptr);
  CKPT_ASSERT(!snapshotter_->is_running());
  slot_ = slot;
  const auto names = blobs.names();
  blob_names_.assign(names.begin(), names.end());
  snapshot::CaptureRequest request;
  request.step = step;
  request.timeline = parts_.link.identity().timeline;
  request.slot = slot.bytes;
  request.generation = slot.generation;
  request.blobs = blobs.spans();
  request.stream = stream;
  // An archive's headers are written last, so the engine computes the checksums.
  request.with_checksums = parts_.options.checksum_in_copy && !layout_.has_archives();
  request.hashed = copies_.choose(step, compares_.next(step));
  if (on_copied_) held_.begin(step);
  // From now on a GPU may write into the Slot, for a while even after our death.
  if (parts_.devices.has_gpus()) parts_.link.arrived(slot, 0);
  Status begun = snapshotter_->begin(request);
  if (begun) return begun;
  // The caller gets the error; the end of the capture reports the same one.
  CKPT_CHECK(snapshotter_->wait_idle(end_deadline()));
  parts_.account.forget_ended();
  return begun;
}

void RunningCapture::capture_arrived(std::uint64_t bytes) {
  // An archive's headers are written at the end: checksums taken now would miss them.
  if (!layout_.has_archives()) parts_.link.arrived(slot_, bytes);
}

void RunningCapture::capture_ended(const snapshot::Captured& captured) {
  if (!captured.status) {
    held_.forget();
    return give_up(captured);
  }
  format::finish_archives(layout_, slot_.bytes);
  if (!held_.is_held(captured.step)) return publish({copied(captured), {}});
  if (auto judged = held_.copied(copied(captured))) return publish(std::move(*judged));
  on_copied_(captured.step);
}

CopiedCapture RunningCapture::copied(const snapshot::Captured& captured) const {
  CopiedCapture copied;
  copied.bytes = captured.bytes;
  copied.bytes_unchanged = captured.bytes_unchanged;
  copied.took = captured.took;
  control::Filled& filled = copied.filled;
  filled.slot = slot_.slot;
  filled.step = captured.step;
  filled.layout_version = layout_.version;
  filled.blob_bytes = captured.blob_bytes;
  filled.blobs.assign(captured.blobs.begin(), captured.blobs.end());
  filled.blob_names = blob_names_;
  filled.chunk_bytes = parts_.chunk_bytes;
  filled.chunk_crcs.assign(captured.chunk_crcs.begin(), captured.chunk_crcs.end());
  filled.copies = copies_.notes(captured.hashes);
  return copied;
}

void RunningCapture::give_up(const snapshot::Captured& captured) {
  parts_.link.abandon(slot_);
  parts_.account.ended(captured);
  parts_.link.skipped(captured.step);
}

void RunningCapture::publish(HeldCapture::Judged judged) {
  snapshot::Captured captured;
  captured.step = judged.capture.filled.step;
  captured.status = std::move(judged.verdict);
  captured.bytes = judged.capture.bytes;
  captured.bytes_unchanged = judged.capture.bytes_unchanged;
  captured.took = judged.capture.took;
  if (!captured.status) return give_up(captured);
  CKPT_POINT("client.before_filled");
  parts_.account.ended(captured);  // First: a captured step has been counted.
  parts_.link.filled(slot_, std::move(judged.capture.filled));
}

void RunningCapture::settle(Step step, Status verdict) {
  if (!verdict)
    verdict = fail(Error(verdict.error()).context(fmt::format("capture step {}", number(step))));
  if (auto judged = held_.judge(step, std::move(verdict))) publish(std::move(*judged));
}

Deadline RunningCapture::end_deadline() const {
  auto time = capture_end_deadline;
  // One core reads all of it once more; a second for each GB is slow for it.
  if (parts_.options.gpu_check || parts_.options.skip_unchanged)
    time += std::chrono::seconds(layout_.slot_bytes / GiB);
  return std::chrono::steady_clock::now() + time;
}

Status RunningCapture::finish(Stream stream) {
  if (snapshotter_) {
    CKPT_CHECK(snapshotter_->guard(stream));
    CKPT_CHECK(snapshotter_->wait_idle(end_deadline()));
  }
  drop_unjudged();
  return {};
}

Result<bool> RunningCapture::finish_soon(Stream stream, Deadline deadline) {
  if (is_running() && parts_.devices.has_gpus()) {
    CKPT_CHECK(snapshotter_->guard(stream));
    const Deadline soon = std::chrono::steady_clock::now() + gpu_end_patience;
    if (!snapshotter_->wait_idle(std::max(soon, deadline))) return false;
  }
  CKPT_CHECK(finish(stream));
  return true;
}

void RunningCapture::end() {
  snapshotter_.reset();  // Waits while the listener, this object, is still whole.
  drop_unjudged();
}

void RunningCapture::drop_unjudged() {
  const std::optional<Step> step = held_.waiting();
  if (!step) return;
  auto judged = held_.judge(
      *step, fail(Errc::unavailable,
                  fmt::format("capture step {}: the trainer was interrupted before it could say "
                              "whether its tensors had changed meanwhile: not saved",
                              number(*step))));
  CKPT_ASSERT(judged.has_value());
  publish(std::move(*judged));
}

}  // namespace ckpt::client
