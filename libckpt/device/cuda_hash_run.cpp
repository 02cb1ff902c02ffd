// A run:
//  1. The table of what is read is written, and our stream waits for the trainer's.
//  2. `ckpt-gpu` queues a slice, and the next one when that has ended; or fence() queues all that
//     is left. An event follows what is queued.
//  3. Behind the last slice the sums are copied to the host.
//  4. fence() makes the trainer's stream wait for the event.
//  5. When all that was queued has ended, the sums become checksums, and the listener is notified.
#include "device/cuda_hash_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/fingerprint.hpp"
#include "base/log.hpp"
#include "base/units.hpp"

namespace ckpt::device {

namespace {

// The kernel adds up what lies within so many bytes: one source. No GPU has as much memory.
constexpr std::uint64_t source_place_bytes = std::uint64_t{1} << 40;
// A stream takes a thousand launches; the copies behind a fence need some hundreds of them.
constexpr std::size_t slices_together_max = 64;

std::size_t entries_max_of(std::span<const std::span<const std::byte>> sources) {
  std::size_t count = 0;
  for (const auto& source : sources)
    count += static_cast<std::size_t>(div_ceil(source.size(), fingerprint_entry_bytes));
  return count + sources.size();  // A fragment each.
}

FingerprintEntry table_entry(const std::byte* source, std::uint64_t place, std::uint64_t bytes) {
  return {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(source)), place, bytes};
}

}  // namespace

CudaHashRun::CudaHashRun(CudaQueue& queue, std::vector<std::span<const std::byte>> sources,
                         std::uint64_t slice_bytes, CopyListener& listener)
    : queue_(queue),
      sources_(std::move(sources)),
      slice_entries_(static_cast<std::size_t>(div_ceil(slice_bytes, fingerprint_entry_bytes))),
      listener_(listener),
      order_(queue.driver, queue.context),
      state_(queue, *this, "checksums"),
      crcs_(sources_.size()) {
  CKPT_ASSERT(!sources_.empty());
  if (!queue_.identity.check()) return;  // The copies will say so.
  const Lock lock(queue_.mutex);
  const Status allocated = allocate();
  if (allocated) return;
  say_once(allocated.error());
  if (table_) queue_.mirrors.give_back(std::move(table_));
}

Status CudaHashRun::allocate() {
  CKPT_CHECK(queue_.driver.check(queue_.driver.create_event(&event_, CU_EVENT_DISABLE_TIMING),
                                 "create an event"));
  CKPT_TRY(table_, queue_.mirrors.take(entries_max_of(sources_) * sizeof(FingerprintEntry),
                                       "a table of fingerprints"));
  CKPT_TRY(sums_, queue_.mirrors.take(sources_.size() * sizeof(FingerprintSums), "fingerprints"));
  return {};
}

CudaHashRun::~CudaHashRun() {
  while (!wait_idle(std::chrono::steady_clock::now() + std::chrono::minutes(1))) {
    log_warning("still waiting for checksums of a GPU's memory");
  }
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  const Lock lock(queue_.mutex);
  const bool has_context = queue_.has_context();
  if (has_context && event_ != nullptr) (void)queue_.driver.destroy_event(event_);
  order_.close(has_context);
  for (auto* memory : {&table_, &sums_}) {
    if (!*memory) continue;
    if (has_context) {
      queue_.mirrors.give_back(std::move(*memory));
    } else {
      (*memory)->forget();
    }
  }
}

void CudaHashRun::choose(std::span<const Stretch> stretches) {
  CKPT_ASSERT(stretches.size() == sources_.size());
  for (std::size_t source = 0; source < stretches.size(); ++source) {
    CKPT_ASSERT(stretches[source].offset <= sources_[source].size());
    CKPT_ASSERT(stretches[source].bytes <= sources_[source].size() - stretches[source].offset);
  }
  stretches_ = stretches;
}

// Returns false if there is nothing to read.
bool CudaHashRun::write_table() {
  auto* const table = reinterpret_cast<FingerprintEntry*>(table_->on_host().data());
  std::size_t count = 0;
  const auto each = [&](const auto& add) {
    for (std::size_t source = 0; source < sources_.size(); ++source) {
      const Stretch& stretch = stretches_[source];
      const std::byte* const begin = sources_[source].data() + stretch.offset;
      const std::uint64_t in_words = stretch.bytes - stretch.bytes % fingerprint_word_bytes;
      add(begin, source * source_place_bytes, in_words, stretch.bytes);
    }
  };
  each([&](const std::byte* begin, std::uint64_t place, std::uint64_t words, std::uint64_t) {
    for (std::uint64_t at = 0; at < words; at += fingerprint_entry_bytes)
      table[count++] =
          table_entry(begin + at, place + at, std::min(fingerprint_entry_bytes, words - at));
  });
  entry_count_ = count;
  each([&](const std::byte* begin, std::uint64_t place, std::uint64_t words, std::uint64_t bytes) {
    if (words < bytes) table[count++] = table_entry(begin + words, place + words, bytes - words);
  });
  fragment_count_ = count - entry_count_;
  return count > 0;
}

Status CudaHashRun::start(const CopyStart& start) {
  CKPT_ASSERT(stretches_.size() == sources_.size());
  has_crcs_ = false;
  Status begun;
  // Step 1.
  const bool has_work = sums_ && write_table();
  if (has_work) begun = begin(start.stream);
  if (has_work && begun) {
    queue_.changed.notify_all();
    return {};
  }
  if (!begun) say_once(begun.error());
  if (sums_ && !has_work) take_checksums();
  listener_.run_ended({});
  return {};
}

Status CudaHashRun::begin(Stream stream) {
  const RelaxedCapture relaxed(queue_.driver);
  CKPT_CHECK(queue_.identity.check());
  const CudaScope scope(queue_.driver, queue_.context);
  CKPT_CHECK(scope.status());
  const Lock lock(queue_.mutex);
  CKPT_ASSERT(state_.is_idle());
  if (!queue_.has_context() || queue_.lost) return fail(Error(*queue_.lost));
  CKPT_TRY(const bool is_captured, order_.is_captured(stream));
  if (is_captured) return fail(Errc::unsupported, "the stream is being captured into a CUDA graph");
  CKPT_CHECK(order_.follow(queue_.stream, stream));
  next_ = 0;
  is_all_queued_ = false;
  is_under_way_ = false;
  is_covered_ = true;
  has_arrived_ = false;
  state_.forget_failure();
  state_.begin();
  return {};
}

void CudaHashRun::queue_slices(const Slice& slice, std::size_t count_max) {
  CKPT_ASSERT(has_left());
  is_under_way_ = true;
  is_covered_ = false;
  for (std::size_t count = 0; count < count_max && has_left(); ++count) {
    const Status queued = queue_slice(slice);
    if (!queued) state_.fail_with(queued.error());
  }
  const Status recorded = queue_.driver.check(queue_.driver.record_event(event_, queue_.stream),
                                              "record an event behind fingerprints");
  is_covered_ = static_cast<bool>(recorded);
  if (!recorded) state_.fail_with(recorded.error());
}

Status CudaHashRun::queue_slice(const Slice& slice) {
  if (next_ == 0) {
    const std::size_t count = entry_count_ + fragment_count_;
    CKPT_CHECK(table_->to_gpu(queue_.stream, {0, count * sizeof(FingerprintEntry)}));
    CKPT_CHECK(queue_.driver.check(
        queue_.driver.set_words(sums_->on_gpu(), 0, sources_.size() * words_per_sum, queue_.stream),
        "clear the fingerprints on the GPU"));
  }
  const std::size_t count = std::min(slice.entries, entry_count_ - next_);
  const bool is_last = next_ + count == entry_count_;
  CudaFingerprint::Launch launch;
  launch.entries = table_->on_gpu() + next_ * sizeof(FingerprintEntry);
  launch.entry_count = static_cast<unsigned>(count);
  launch.fragments = table_->on_gpu() + entry_count_ * sizeof(FingerprintEntry);
  launch.fragment_count = is_last ? static_cast<unsigned>(fragment_count_) : 0;
  launch.chunk_bytes = source_place_bytes;
  launch.sums = sums_->on_gpu();
  launch.blocks = slice.blocks;
  CKPT_CHECK(queue_.fingerprint.queue(launch, queue_.stream));
  next_ += count;
  if (!is_last) return {};
  // Step 3.
  is_all_queued_ = true;
  return sums_->to_host(queue_.stream, {0, sources_.size() * sizeof(FingerprintSums)});
}

Status CudaHashRun::fence(Stream stream) {
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  Lock lock(queue_.mutex);
  if (!state_.is_running()) return {};
  if (!queue_.has_context()) return state_.wait_for_end(lock);
  const auto is_captured = order_.is_captured(stream);
  if (!scope.status() || !is_captured || *is_captured) return state_.wait_for_end(lock);
  // Step 2.
  if (has_left()) {
    const std::size_t each =
        static_cast<std::size_t>(div_ceil(entry_count_ - next_, slices_together_max));
    queue_slices({std::max(slice_entries_, each), CudaFingerprint::blocks_of_a_whole_gpu},
                 slices_together_max);
  }
  queue_.changed.notify_all();
  if (!is_under_way_) return {};
  // Step 4.
  if (is_covered_ && order_.precede(event_, stream)) return {};
  return state_.wait_for_end(lock);
}

Status CudaHashRun::wait_idle(Deadline deadline) {
  Lock lock(queue_.mutex);
  return state_.wait_idle(lock, deadline);
}

bool CudaHashRun::advance(Lock& lock) {
  if (!state_.is_running()) return false;
  if (queue_.lost) state_.fail_with(Error(*queue_.lost));
  if (is_under_way_) {
    if (!has_ended()) return false;
    is_under_way_ = false;
    has_arrived_ = true;
  }
  if (has_left()) {
    // Step 2.
    queue_slices({slice_entries_, CudaFingerprint::blocks_beside_training}, 1);
  } else {
    end(lock);
  }
  return true;
}

bool CudaHashRun::has_ended() {
  if (queue_.lost) return true;  // Nothing queued will run any more.
  const CUresult result =
      is_covered_ ? queue_.driver.query_event(event_) : queue_.driver.query_stream(queue_.stream);
  if (!is_answer(result)) is_covered_ = false;  // The stream itself can say.
  return state_.has_ended(result, "take fingerprints");
}

void CudaHashRun::say_once(const Error& why) {
  if (!queue_.hash_trouble.is_first()) return;
  log_warning("compare_copies: copies on this GPU are not compared: {}", why.text());
}

void CudaHashRun::take_checksums() {
  const auto* const sums = reinterpret_cast<const FingerprintSums*>(sums_->on_host().data());
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    const std::uint64_t bytes = stretches_[source].bytes;
    // The others are empty, and their sums may be from before.
    const FingerprintSums sum = bytes > 0 ? sums[source] : FingerprintSums{};
    crcs_[source] = short_fingerprint(FingerprintSum(sum).finish(bytes));
  }
  has_crcs_ = true;
}

std::span<const Crc32> CudaHashRun::checksums() const {
  if (!has_crcs_) return {};
  return crcs_;
}

void CudaHashRun::end(Lock& lock) {
  // Step 5.
  state_.begin_end();
  if (state_.failure()) {
    say_once(*state_.failure());
  } else {
    take_checksums();
  }
  state_.finish(lock, listener_, {});
}

}  // namespace ckpt::device
