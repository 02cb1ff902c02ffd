// A capture:
//  1. The step's numbers are patched into the file's header, which is a source like any other.
//  2. Unguarded sources start on their devices; meanwhile the calling thread copies the blobs.
//  3. Unguarded sources are fenced: the caller may change them when begin() returns.
//  4. Guarded sources start; guard() fences them.
//  5. The thread that ends the last part combines the checksums and notifies the listener.
#include "snapshot/snapshotter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "format/safetensors_header.hpp"

namespace ckpt::snapshot {

Snapshotter::Snapshotter(Plan plan, CaptureListener& listener)
    : listener_(listener),
      header_(std::move(plan.header)),
      blob_capacity_(plan.layout.blob_capacity),
      plan_(plan_copies(plan.layout, plan.sources, header_, plan.chunk_bytes)),
      checksums_(plan.chunk_bytes) {
  checksums_.reserve(div_ceil(plan.layout.slot_bytes, plan.chunk_bytes));
  for (PlannedRun& planned : plan_.runs) {
    CKPT_ASSERT(planned.device < plan.devices.size());
    has_checksums_ = has_checksums_ && plan.devices[planned.device]->has_checksums();
    planned.list.slots = planned.is_guarded && !planned.is_frozen ? 0 : plan.slots;
    auto end = std::make_unique<RunEnd>(*this);
    auto run = plan.devices[planned.device]->make_run(std::move(planned.list), *end);
    runs_.push_back({planned.is_guarded, std::move(end), std::move(run)});
  }
  hashes_.resize(plan.hashed.size());
  for (std::size_t device = 0; device < plan.devices.size(); ++device) {
    add_hashing(plan, device, false);
    add_hashing(plan, device, true);
  }
}

void Snapshotter::add_hashing(const Plan& plan, std::size_t device, bool guarded) {
  Hashing hashing;
  std::vector<std::span<const std::byte>> sources;
  for (std::size_t index = 0; index < plan.hashed.size(); ++index) {
    const HashedSource& source = plan.hashed[index];
    if (source.device != device || source.is_guarded != guarded) continue;
    hashing.sources.push_back(index);
    sources.push_back(source.bytes);
  }
  if (sources.empty()) return;
  hashing.stretches.resize(sources.size());
  auto end = std::make_unique<RunEnd>(*this);
  auto run = plan.devices[device]->make_hash_run(std::move(sources), *end);
  if (run == nullptr) return;  // Nobody hashes them.
  hashing.run = run.get();
  hashings_.push_back(std::move(hashing));
  runs_.push_back({guarded, std::move(end), std::move(run), true});
}

void Snapshotter::choose_hashed(std::span<const device::Stretch> stretches) {
  with_hashes_ = !stretches.empty();
  if (!with_hashes_) return;
  CKPT_ASSERT(stretches.size() == hashes_.size());
  std::ranges::fill(hashes_, std::nullopt);
  for (Hashing& hashing : hashings_) {
    for (std::size_t place = 0; place < hashing.sources.size(); ++place)
      hashing.stretches[place] = stretches[hashing.sources[place]];
    hashing.run->choose(hashing.stretches);
  }
}

Snapshotter::~Snapshotter() {
  // Waits for every run before any is destroyed: the thread that ends the last part reads all of
  // them. There is no deadline: a copy that still runs would use memory that is about to be freed.
  for (Run& run : runs_) {
    while (!run.run->wait_idle(std::chrono::steady_clock::now() + std::chrono::minutes(1))) {
      log_warning("still waiting for the copies of step {}", number(step_));
    }
  }
}

Status Snapshotter::begin(const CaptureRequest& request) {
  CKPT_ASSERT(!is_running());
  CKPT_ASSERT(request.slot.size() >= plan_.bytes + align_up(blob_capacity_, page_bytes));
  is_running_.store(true, std::memory_order_relaxed);
  is_torn_.store(false, std::memory_order_relaxed);
  step_ = request.step;
  slot_ = request.slot;
  with_checksums_ = request.with_checksums && has_checksums_;
  choose_hashed(request.hashed);
  strips_reported_ = 0;
  bytes_reported_ = 0;
  for (Run& run : runs_) run.end->strips_there.store(0, std::memory_order_relaxed);
  began_at_ = std::chrono::steady_clock::now();
  // begin() itself counts as one part: the capture cannot end before its result is recorded.
  parts_left_.store(1, std::memory_order_relaxed);
  Status status = copy_all(request);
  begin_status_ = status;
  part_ended();
  return status;
}

Status Snapshotter::copy_all(const CaptureRequest& request) {
  // Step 1.
  if (!header_.empty()) format::patch_header(header_, request.timeline, request.step);
  // Step 2.
  CKPT_POINT("snapshot.begin");
  Status status = start_runs(request, false);
  if (status) status = copy_blobs(request);
  // Step 3, even after a failure: started runs must not read the sources any longer.
  Status fenced = fence_runs(request.stream, false);
  if (!status) return status;
  CKPT_CHECK(std::move(fenced));
  CKPT_POINT("snapshot.unguarded_copied");
  // Step 4.
  return start_runs(request, true);
}

Status Snapshotter::start_runs(const CaptureRequest& request, bool guarded) {
  const device::CopyStart start{request.slot, request.stream, with_checksums_, request.generation};
  for (Run& run : runs_) {
    if (run.is_guarded != guarded || (run.is_hashing && !with_hashes_)) continue;
    run.end->status = {};
    parts_left_.fetch_add(1, std::memory_order_relaxed);
    Status started = run.run->start(start);
    if (started) continue;
    parts_left_.fetch_sub(1, std::memory_order_relaxed);
    return started;
  }
  return {};
}

Status Snapshotter::fence_runs(Stream stream, bool guarded) {
  Status first;
  for (Run& run : runs_) {
    if (run.is_guarded != guarded) continue;
    Status fenced = run.run->fence(stream);
    if (fenced) continue;
    // The caller may change bytes that were not read yet, so the capture must not be used.
    is_torn_.store(true, std::memory_order_release);
    if (first) first = std::move(fenced);
  }
  return first;
}

Status Snapshotter::guard(Stream stream) {
  if (!is_running()) return {};
  return fence_runs(stream, true);
}

Status Snapshotter::wait_idle(device::Deadline deadline) {
  for (Run& run : runs_) CKPT_CHECK(run.run->wait_idle(deadline));
  return {};
}

void Snapshotter::forget_slots() {
  CKPT_ASSERT(!is_running());
  for (Run& run : runs_) run.run->forget_slots();
}

Status Snapshotter::copy_blobs(const CaptureRequest& request) {
  blobs_.clear();
  blob_bytes_ = 0;
  for (const auto& blob : request.blobs) {
    if (blob.size() > blob_capacity_ - blob_bytes_)
      return fail(Errc::exhausted, fmt::format("step {}: the blobs need more than the {} bytes of "
                                               "blob_capacity",
                                               number(request.step), blob_capacity_));
    const std::uint64_t offset = plan_.bytes + blob_bytes_;
    if (!blob.empty()) std::memcpy(request.slot.data() + offset, blob.data(), blob.size());
    blobs_.push_back({offset, blob.size()});
    blob_bytes_ += blob.size();
  }
  const std::uint64_t padding = align_up(blob_bytes_, page_bytes) - blob_bytes_;
  std::memset(request.slot.data() + plan_.bytes + blob_bytes_, 0, padding);
  return {};
}

void Snapshotter::RunEnd::strips_arrived(std::size_t count) {
  strips_there.store(count, std::memory_order_release);
  owner.report_arrived();
}

// Returns if another thread is notifying: the next batch, or the end, reports the rest.
void Snapshotter::report_arrived() {
  if (with_checksums_) return;
  if (is_reporting_.test_and_set(std::memory_order_acquire)) return;
  const std::uint64_t before = bytes_reported_;
  for (; strips_reported_ < plan_.in_order.size(); ++strips_reported_) {
    const StripPlace& place = plan_.in_order[strips_reported_];
    if (place.strip >= runs_[place.run].end->strips_there.load(std::memory_order_acquire)) break;
    bytes_reported_ += place.bytes;
  }
  if (bytes_reported_ > before) listener_.capture_arrived(bytes_reported_);
  is_reporting_.clear(std::memory_order_release);
}

void Snapshotter::RunEnd::run_ended(Status ended) {
  if (ended) strips_there.store(SIZE_MAX, std::memory_order_release);
  status = std::move(ended);
  owner.part_ended();
}

void Snapshotter::part_ended() {
  if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) end_capture();
}

void Snapshotter::end_capture() {
  // Step 5.
  CKPT_POINT("snapshot.copied");
  Captured captured;
  captured.step = step_;
  captured.status = begin_status_;
  for (const Run& run : runs_)
    if (captured.status) captured.status = run.end->status;
  if (captured.status && is_torn_.load(std::memory_order_acquire))
    captured.status = fail(Errc::unavailable, fmt::format("capture step {}: the copies did not end "
                                                          "before the tensors changed",
                                                          number(step_)));
  if (captured.status) {
    combine_checksums();
    collect_hashes();
    captured.bytes = plan_.bytes + align_up(blob_bytes_, page_bytes);
    for (const Run& run : runs_) captured.bytes_unchanged += run.run->bytes_unchanged();
    CKPT_ASSERT(captured.bytes_unchanged <= captured.bytes);
    captured.blob_bytes = blob_bytes_;
    captured.blobs = blobs_;
    captured.chunk_crcs = checksums_.crcs();
    if (with_hashes_) captured.hashes = hashes_;
  }
  captured.took = std::chrono::steady_clock::now() - began_at_;
  listener_.capture_ended(captured);
  // Last, and yet early enough for a thread that the listener woke: a save begins with wait_idle(),
  // which waits until the run that called us has returned.
  is_running_.store(false, std::memory_order_release);
}

void Snapshotter::collect_hashes() {
  if (!with_hashes_) return;
  for (const Hashing& hashing : hashings_) {
    const auto crcs = hashing.run->checksums();
    CKPT_ASSERT(crcs.empty() || crcs.size() == hashing.sources.size());
    for (std::size_t place = 0; place < crcs.size(); ++place)
      hashes_[hashing.sources[place]] = crcs[place];
  }
}

void Snapshotter::combine_checksums() {
  checksums_.clear();
  if (!with_checksums_) return;
  for (const StripPlace& place : plan_.in_order) {
    checksums_.add(runs_[place.run].run->checksums()[place.strip], place.bytes);
  }
  // The blobs are small and were just written, so they are read once more.
  const std::uint64_t end = plan_.bytes + align_up(blob_bytes_, page_bytes);
  for (std::uint64_t offset = plan_.bytes; offset < end;) {
    const std::uint64_t room = plan_.chunk_bytes - offset % plan_.chunk_bytes;
    const std::uint64_t bytes = std::min(room, end - offset);
    checksums_.add(crc32(slot_.subspan(offset, bytes)), bytes);
    offset += bytes;
  }
}

}  // namespace ckpt::snapshot
