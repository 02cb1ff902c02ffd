// A broadcast, on each rank:
//   1. The host waits for what the trainer has queued: a communicator that is aborted must not
//      leave kernels behind somebody else's work.
//   2. The root's GPU takes fingerprints of its own memory.
//   3. One group of NCCL calls sends the parts, and behind them the root's fingerprints.
//   4. The receivers' GPUs take fingerprints of what has arrived.
//   5. The host waits for the end, and the receivers compare.
#include "device/nccl_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::device {

namespace {

constexpr std::chrono::microseconds poll_interval{50};
constexpr std::uint64_t chunk_bytes = default_chunk_bytes;  // Covered by one fingerprint.

CUdeviceptr address_of(const void* data) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(data));
}

Status expired(std::string_view attempted) {
  return fail(Errc::unavailable, fmt::format("{}: it did not end in time", attempted));
}

bool has_passed(Deadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

}  // namespace

// Each part begins a Chunk of its own, so that a fingerprint belongs to one part.
struct NcclGroup::Transfer {
  Status make(const CudaDriver& driver, std::span<const GpuPart> parts) {
    std::vector<CopyPiece> pieces;
    std::uint64_t at = 0;
    for (const GpuPart& part : parts) {
      first_chunks.push_back(at / chunk_bytes);
      if (part.bytes > 0)
        pieces.push_back({static_cast<const std::byte*>(part.data), at, part.bytes});
      at = align_up(at + part.bytes, chunk_bytes);
    }
    const std::size_t chunks = at / chunk_bytes;
    CKPT_TRY(table, FingerprintTable::make(driver, plan_fingerprints(pieces, chunk_bytes),
                                           {chunk_bytes, chunks}));
    CKPT_TRY(sent, CudaMirror::make(driver, bytes(), "fingerprints that arrive"));
    CKPT_ASSERT(table->sums().size() == chunks);
    return {};
  }
  std::size_t bytes() const { return table->sums().size_bytes(); }
  // Leaves the memory allocated: aborted work may still use it.
  void leave() {
    if (table) table->forget();
    if (sent) sent->forget();
  }

  std::vector<std::uint64_t> first_chunks;  // By part.
  std::unique_ptr<FingerprintTable> table;
  std::unique_ptr<CudaMirror> sent;  // The root's, as they arrived.
};

Result<std::unique_ptr<NcclGroup>> NcclGroup::open(const NcclLibrary& library,
                                                   const CudaDriver& driver, const Place& place,
                                                   Deadline deadline) {
  CKPT_ASSERT(place.rank >= 0);
  CKPT_ASSERT(place.rank < place.ranks);
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<NcclGroup> group(new NcclGroup(library, driver, place));
  CKPT_CHECK(group->open_stream());
  CKPT_CHECK(group->join(deadline));
  return group;
}

Status NcclGroup::open_stream() {
  CKPT_CHECK(driver_.check(driver_.get_device(&gpu_, place_.gpu), "find the GPU"));
  CKPT_CHECK(driver_.check(driver_.retain_context(&context_, gpu_), "open the GPU's context"));
  const CudaScope scope(driver_, context_);
  CKPT_CHECK(scope.status());
  CKPT_CHECK(driver_.check(driver_.create_stream(&stream_, CU_STREAM_NON_BLOCKING),
                           "create the stream for NCCL"));
  CKPT_CHECK(
      driver_.check(driver_.create_event(&event_, CU_EVENT_DISABLE_TIMING), "create an event"));
  return fingerprint_.load(stream_);
}

// NCCL takes the GPU from the calling thread's context.
Status NcclGroup::join(Deadline deadline) {
  CKPT_ASSERT(comm_ == nullptr);
  const CudaScope scope(driver_, context_);
  CKPT_CHECK(scope.status());
  const std::string attempted =
      fmt::format("join {} ranks by NCCL as rank {}", place_.ranks, place_.rank);
  NcclConfig config;
  CKPT_CHECK(library_.check(library_.join(&comm_, place_.ranks, place_.id, place_.rank, &config),
                            attempted));
  if (comm_ == nullptr) return fail(Errc::io, attempted + ": NCCL made no communicator");
  return wait_ready(attempted, deadline);
}

NcclGroup::~NcclGroup() {
  if (context_ == nullptr) return;
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  if (comm_ != nullptr) abort();
  CKPT_ASSERT(comm_ == nullptr);
  // Work that is left uses the stream, and the context.
  if (!is_quiet_) return;
  if (event_ != nullptr) (void)driver_.destroy_event(event_);
  if (stream_ != nullptr) (void)driver_.destroy_stream(stream_);
  (void)driver_.release_context(gpu_);
}

Status NcclGroup::broadcast(const Work& work, Deadline deadline) {
  if (comm_ == nullptr) return fail(Errc::unavailable, "broadcast: the communicator has ended");
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  Transfer transfer;
  Status done = [&]() -> Status {
    CKPT_CHECK(scope.status());
    CKPT_CHECK(check_work(work));
    return carry_out(work, transfer, deadline);
  }();
  // The other ranks may wait for this one, whatever has failed here.
  if (!done && done.error().code() != Errc::corruption) abort();
  if (!is_quiet_) transfer.leave();
  return done;
}

Status NcclGroup::check_work(const Work& work) const {
  if (work.root < 0 || work.root >= place_.ranks)
    return fail(Errc::invalid_argument,
                fmt::format("broadcast: there is no rank {} of {}", work.root, place_.ranks));
  std::uint64_t bytes = 0;
  for (const GpuPart& part : work.parts) {
    CKPT_CHECK(check_memory(part));
    bytes += std::min(part.bytes, GpuRanks::bytes_max + 1);
  }
  if (work.parts.size() <= GpuRanks::parts_max && bytes <= GpuRanks::bytes_max) return {};
  return fail(Errc::invalid_argument,
              fmt::format("broadcast: {} parts are more than {}, or more than {} bytes together",
                          work.parts.size(), GpuRanks::parts_max, GpuRanks::bytes_max));
}

// A kernel that touches other memory destroys the context, and so the training.
Status NcclGroup::check_memory(const GpuPart& part) const {
  if (part.bytes == 0) return {};
  for (const std::uint64_t offset : {std::uint64_t{0}, part.bytes - 1}) {
    int gpu = -1;
    const CUresult found = driver_.pointer_attribute(&gpu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                     address_of(part.data) + offset);
    if (is_context_lost(found)) return driver_.check(found, "look at a part's address");
    if (found != CUDA_SUCCESS || gpu != place_.gpu)
      return fail(Errc::invalid_argument,
                  fmt::format("broadcast: {} bytes at {} are no memory of GPU {}", part.bytes,
                              part.data, place_.gpu));
  }
  return {};
}

Status NcclGroup::carry_out(const Work& work, Transfer& transfer, Deadline deadline) {
  // Step 1.
  CKPT_CHECK(driver_.check(driver_.record_event(event_, work.after),
                           "record an event behind the trainer's work"));
  CKPT_CHECK(wait_event("wait for the trainer's work before a broadcast", deadline));
  const bool is_empty = std::ranges::all_of(work.parts, [](const auto& p) { return p.bytes == 0; });
  if (is_empty) return {};
  CKPT_CHECK(transfer.make(driver_, work.parts));

  const bool is_root = work.root == place_.rank;
  const std::string attempted =
      fmt::format("broadcast {} parts from rank {}", work.parts.size(), work.root);
  // Step 2.
  is_quiet_ = false;
  if (is_root) CKPT_CHECK(transfer.table->queue(fingerprint_, stream_));
  // Step 3.
  CKPT_CHECK(queue(work, transfer));
  CKPT_CHECK(wait_ready(attempted, deadline));
  // Step 4.
  if (!is_root) {
    CKPT_CHECK(transfer.table->queue(fingerprint_, stream_));
    CKPT_CHECK(transfer.sent->to_host(stream_, {0, transfer.bytes()}));
  }
  // Step 5.
  CKPT_CHECK(driver_.check(driver_.record_event(event_, stream_), "record an event"));
  CKPT_CHECK(wait_event(attempted, deadline));
  is_quiet_ = true;
  return is_root ? Status() : compare(work, transfer);
}

Status NcclGroup::queue(const Work& work, const Transfer& transfer) {
  CKPT_ASSERT(comm_ != nullptr);
  CKPT_CHECK(library_.check(library_.begin_group(), "begin a group of NCCL calls"));
  const auto send = [&](void* data, std::size_t bytes) {
    return library_.check(
        library_.broadcast(data, data, bytes, nccl_uint8, work.root, comm_, stream_),
        "queue a broadcast");
  };
  Status queued = [&]() -> Status {
    for (const GpuPart& part : work.parts)
      if (part.bytes > 0) CKPT_CHECK(send(part.data, part.bytes));
    const bool is_root = work.root == place_.rank;
    const CUdeviceptr sums = is_root ? transfer.table->sums_on_gpu() : transfer.sent->on_gpu();
    return send(reinterpret_cast<void*>(static_cast<std::uintptr_t>(sums)), transfer.bytes());
  }();
  // The thread stays in the group until it is ended, also after an error.
  Status ended = library_.check(library_.end_group(), "end a group of NCCL calls");
  return queued ? std::move(ended) : std::move(queued);
}

Status NcclGroup::compare(const Work& work, const Transfer& transfer) const {
  const auto ours = transfer.table->sums();
  const std::byte* const sent = transfer.sent->on_host().data();
  for (std::size_t chunk = 0; chunk < ours.size(); ++chunk) {
    if (std::memcmp(&ours[chunk], sent + chunk * sizeof(FingerprintSums),
                    sizeof(FingerprintSums)) == 0)
      continue;
    // The last one that begins there or before; those without bytes come first.
    const auto next = std::ranges::upper_bound(transfer.first_chunks, chunk);
    CKPT_ASSERT(next != transfer.first_chunks.begin());
    const auto part = static_cast<std::size_t>(next - transfer.first_chunks.begin()) - 1;
    const std::uint64_t begin = (chunk - transfer.first_chunks[part]) * chunk_bytes;
    return fail(Errc::corruption,
                fmt::format("broadcast from rank {}: part {} of {} did not arrive as it was sent, "
                            "in its bytes {} to {}",
                            work.root, part + 1, work.parts.size(), begin,
                            std::min(begin + chunk_bytes, work.parts[part].bytes)));
  }
  return {};
}

Status NcclGroup::wait_ready(std::string_view attempted, Deadline deadline) const {
  while (true) {
    if (has_passed(deadline)) return expired(attempted);
    NcclResult state = nccl_in_progress;
    CKPT_CHECK(library_.check(library_.state(comm_, &state), attempted));
    CKPT_CHECK(library_.check(state, attempted));
    if (state == nccl_success) return {};
    std::this_thread::sleep_for(poll_interval);
  }
}

Status NcclGroup::wait_event(std::string_view attempted, Deadline deadline) const {
  while (true) {
    if (has_passed(deadline)) return expired(attempted);
    const CUresult result = driver_.query_event(event_);
    if (result != CUDA_ERROR_NOT_READY) return driver_.check(result, attempted);
    NcclResult state = nccl_success;
    CKPT_CHECK(library_.check(library_.state(comm_, &state), attempted));
    CKPT_CHECK(library_.check(state, attempted));
    std::this_thread::sleep_for(poll_interval);
  }
}

// The kernels that are under way end soon after it; until then they may write.
void NcclGroup::abort() {
  CKPT_ASSERT(comm_ != nullptr);
  (void)library_.abort(std::exchange(comm_, nullptr));
  const Deadline deadline = std::chrono::steady_clock::now() + place_.abort_patience;
  while (!is_quiet_) {
    const CUresult result = driver_.query_stream(stream_);
    is_quiet_ = result == CUDA_SUCCESS || is_context_lost(result);
    if (is_quiet_ || has_passed(deadline)) return;
    std::this_thread::sleep_for(poll_interval);
  }
}

Status NcclGroup::close(Deadline deadline) {
  if (comm_ == nullptr) return {};
  CKPT_ASSERT(is_quiet_);
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  const std::string_view attempted = "close the communicator of NCCL";
  Status ended = [&]() -> Status {
    CKPT_CHECK(scope.status());
    CKPT_CHECK(library_.check(library_.finalize(comm_), attempted));
    return wait_ready(attempted, deadline);
  }();
  if (!ended) {
    abort();
    return ended;
  }
  return library_.check(library_.destroy(std::exchange(comm_, nullptr)), attempted);
}

}  // namespace ckpt::device
