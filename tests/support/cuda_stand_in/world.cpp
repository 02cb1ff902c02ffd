#include "support/cuda_stand_in/world.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace ckpt::test {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t front_bytes = std::size_t{1} << 36;  // Of addresses, not of memory.

// How long a GPU still writes after its process is gone, while somebody holds the device's files.
constexpr std::chrono::seconds after_death{2};

// A child stands for the forked worker that holds them, and for the GPU.
void write_on(const Work& work) {
  const auto first = reinterpret_cast<std::uintptr_t>(work.host) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(work.host) + work.host_bytes;
  ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DOFORK);
  if (::fork() != 0) return;
  const auto until = std::chrono::steady_clock::now() + after_death;
  while (std::chrono::steady_clock::now() < until) {
    std::memset(const_cast<void*>(work.host), poison, work.host_bytes);
    ::sched_yield();
  }
  ::_exit(0);
}

bool is_mapped(const void* address, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  std::vector<unsigned char> pages((end - first + page - 1) / page);
  return ::mincore(reinterpret_cast<void*>(first), end - first, pages.data()) == 0;
}

}  // namespace

bool destroys_context(CUresult error) {
  switch (error) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_NO_DEVICE:
      return true;
    default:
      return false;
  }
}

World::World(const Settings& settings_in) : settings(settings_in), random_(settings_in.seed) {
  for (std::uint64_t i = 0; i < settings.devices; ++i) {
    contexts.push_back(std::make_unique<Context>());
    contexts.back()->device = static_cast<int>(i);
  }
}

World::~World() {
  for (const auto& [address, allocation] : allocations_)
    ::munmap(allocation.backing, allocation.bytes);
  // As at the end of a process: calls that failed may have left some.
  for (const auto& [address, pinned] : pinned_)
    if (pinned.is_ours) std::free(reinterpret_cast<void*>(address));
  if (front_ != nullptr) ::munmap(front_, front_bytes);
}

void World::violate(std::string what) {
  violations += what + "\n";
}

std::vector<std::size_t> World::shuffled(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

CUresult World::enter(const char* name) {
  ++calls_;
  counts.calls = calls_;
  if (is_shut_down_) return CUDA_ERROR_DEINITIALIZED;
  if (settings.kill_at != 0 && calls_ == settings.kill_at) ::raise(SIGKILL);
  if (settings.eager != 0) run_all();
  if (settings.fail_at == 0 || calls_ != settings.fail_at) return CUDA_SUCCESS;
  failed_call = name;
  return static_cast<CUresult>(settings.error);
}

// --- Time ---

void World::progress() {
  for (std::uint64_t i = draw(4); i > 0; --i) {
    if (!step()) return;
  }
}

bool World::run_until(const MarkPtr& mark) {
  while (mark != nullptr && !mark->is_done) {
    if (!step()) return false;
  }
  return true;
}

void World::run_all() {
  while (step()) {
  }
}

bool World::step() {
  if (is_shut_down_) return false;
  std::vector<StreamQueue*> ready;
  const auto consider = [&](StreamQueue& stream) {
    if (may_run(stream)) ready.push_back(&stream);
  };
  for (auto& [handle, stream] : streams) consider(*stream);
  for (auto& [context, stream] : default_streams_) consider(*stream);
  if (ready.empty()) return false;
  advance(*ready[draw(ready.size())]);
  return true;
}

bool World::may_run(StreamQueue& stream) {
  if (stream.queue.empty() || stream.is_held || stream.context->lost != CUDA_SUCCESS) return false;
  const Work& work = stream.queue.front();
  if (std::any_of(work.after.begin(), work.after.end(),
                  [](const MarkPtr& mark) { return !mark->is_done; }))
    return false;
  if (waits_behind_others(stream)) return false;
  if (settings.fifo == 0 || !work.is_to_host) return true;
  if (!work.is_on_engine) put_on_engine(stream);
  return is_next_on_engine(stream);
}

// One queue of the hardware begins its works in the order in which they came, whatever their
// streams are. The front of a stream that is held has begun.
bool World::waits_behind_others(const StreamQueue& stream) const {
  if (settings.connections == 0) return false;
  const Work& work = stream.queue.front();
  // A priority helps a stream's copies to the host, and nothing else of it: so an H200 does it.
  const bool goes_past = work.is_to_host || (!work.is_kernel && !work.is_copy);
  if (work.has_started || (stream.has_priority && goes_past)) return false;
  return std::any_of(streams.begin(), streams.end(), [&](const auto& one) {
    const StreamQueue& other = *one.second;
    if (&other == &stream || other.context != stream.context || other.has_priority) return false;
    if (other.connection != stream.connection) return false;
    const std::size_t begun =
        !other.queue.empty() && (other.is_held || other.queue.front().has_started) ? 1 : 0;
    return other.queue.size() > begun && other.queue[begun].sequence < work.sequence;
  });
}

// A row of copies of one stream takes its place as one block: up to the next work of another
// engine, or one that still waits for something.
void World::put_on_engine(StreamQueue& stream) {
  auto& engine = engines_[stream.context->device];
  std::erase_if(engine, [](const auto& copy) { return copy.first->is_done; });
  if (!stream.has_priority) {
    std::uint64_t ahead = 0;
    for (const auto& [mark, bytes] : engine) ahead += bytes;
    counts.bytes_ahead_max = std::max(counts.bytes_ahead_max, ahead);
  }
  for (Work& work : stream.queue) {
    const bool is_ready = std::all_of(work.after.begin(), work.after.end(),
                                      [](const MarkPtr& mark) { return mark->is_done; });
    if (work.ends_block || !is_ready) return;
    if (!work.is_to_host) continue;
    work.is_on_engine = true;
    engine.emplace_back(work.mark, work.host_bytes);
  }
}

bool World::is_next_on_engine(const StreamQueue& stream) {
  auto& engine = engines_[stream.context->device];
  std::erase_if(engine, [](const auto& copy) { return copy.first->is_done; });
  return !engine.empty() && engine.front().first == stream.queue.front().mark;
}

void World::advance(StreamQueue& stream) {
  Work& work = stream.queue.front();
  if (!work.has_started && work.start) {
    work.has_started = true;
    work.start();
    if (work.is_copy && ++copies_begun_ == settings.kill_copy) die(work);
    return;
  }
  if (work.run) {
    if (work.is_copy) {
      end_copy(stream, work.run);
    } else {
      work.run();
    }
  }
  if (stream.context->lost != CUDA_SUCCESS) return;
  if (work.is_to_host) bytes_queued_ -= work.host_bytes;
  work.mark->is_done = true;
  stream.launches -= work.is_launch ? 1 : 0;
  stream.queue.pop_front();
}

void World::end_copy(StreamQueue& stream, const std::function<void()>& transfer) {
  ++copies_ended_;
  if (settings.fail_copy == 0 || copies_ended_ != settings.fail_copy) return transfer();
  lose(*stream.context, static_cast<CUresult>(settings.error));
}

void World::die(const Work& work) const {
  if (settings.dma_after_death != 0 && work.is_to_host) write_on(work);
  ::raise(SIGKILL);
}

// Work queued there never ends. Its marks stay as they are: other contexts wait for good.
void World::lose(Context& context, CUresult error) {
  context.lost = error;
}

void World::activate(Context& context) {
  if (context.is_active) return;
  context.is_active = true;
  context.id = ++context_ids_;
}

// Streams elsewhere that wait for it go on.
void World::drop_work(StreamQueue& stream) {
  for (const Work& work : stream.queue) {
    work.mark->is_done = true;
    if (work.is_to_host) bytes_queued_ -= work.host_bytes;
  }
  stream.queue.clear();
  stream.launches = 0;
}

void World::destroy(Context& context) {
  context.is_active = false;
  context.lost = CUDA_SUCCESS;
  for (auto& [handle, stream] : streams) {
    if (stream->context != &context || stream->is_gone) continue;
    drop_work(*stream);
    counts.live_streams -= stream->is_destroyed ? 0 : 1;
    stream->is_gone = true;
    stream->is_capturing = false;
  }
  drop_work(default_stream(context));
  std::erase_if(per_thread_streams_, [&](const auto& one) { return one.first.first == &context; });
  for (auto event = events.begin(); event != events.end();) {
    if (event->second->context != &context) {
      ++event;
      continue;
    }
    former_events.push_back(std::move(event->second));
    event = events.erase(event);
    --counts.live_events;
  }
  std::erase_if(allocations_, [&](const auto& one) {
    if (one.second.context != &context) return false;
    ::munmap(one.second.backing, one.second.bytes);
    return true;
  });
  std::erase_if(pinned_, [&](const auto& one) {
    if (one.second.context != &context) return false;
    if (one.second.is_ours) std::free(reinterpret_cast<void*>(one.first));
    return true;
  });
  counts.pinned_ranges = pinned_.size();
}

void World::shut_down() {
  is_shut_down_ = true;
  pinned_.clear();
  counts.pinned_ranges = 0;
}

// As the real driver does it, in the call that launches.
void World::make_room(StreamQueue& stream) {
  if (stream.launches < settings.pending_max) return;
  ++counts.launches_blocked;
  while (stream.launches >= settings.pending_max && step()) {
  }
}

bool World::is_kernel_waiting(const Context& context) const {
  const auto has_kernel = [&](const StreamQueue& stream) {
    return stream.context == &context && !stream.has_priority &&
           std::any_of(stream.queue.begin(), stream.queue.end(),
                       [](const Work& work) { return work.is_kernel; });
  };
  return std::any_of(streams.begin(), streams.end(),
                     [&](const auto& one) { return has_kernel(*one.second); });
}

void World::queue(StreamQueue& stream, Work work) {
  if (work.is_launch) make_room(stream);
  stream.launches += work.is_launch ? 1 : 0;
  work.sequence = ++works_queued_;
  if (work.is_kernel && !stream.has_priority && is_kernel_waiting(*stream.context))
    ++counts.kernels_behind_others;
  StreamQueue& legacy = default_stream(*stream.context);
  if (&stream == &legacy) {
    for (auto& [handle, other] : streams) {
      if (other->context == stream.context && other->is_blocking && other->last)
        work.after.push_back(other->last);
    }
  } else if (stream.is_blocking && legacy.last) {
    work.after.push_back(legacy.last);
  }
  if (work.is_to_host) {
    bytes_queued_ += work.host_bytes;
    counts.bytes_queued_max = std::max(counts.bytes_queued_max, bytes_queued_);
  }
  stream.last = work.mark;
  stream.queue.push_back(std::move(work));
}

StreamQueue& World::default_stream(Context& context) {
  auto& stream = default_streams_[&context];
  if (!stream) {
    stream = std::make_unique<StreamQueue>();
    stream->context = &context;
  }
  return *stream;
}

StreamQueue& World::per_thread_stream(Context& context) {
  StreamQueue*& known = per_thread_streams_[{&context, std::this_thread::get_id()}];
  if (known == nullptr) {
    auto stream = std::make_unique<StreamQueue>();
    stream->context = &context;
    known = stream.get();
    streams[reinterpret_cast<CUstream>(known)] = std::move(stream);
  }
  return *known;
}

// --- Memory of the GPUs ---

CUresult World::allocate(Context& context, std::size_t bytes, CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t rounded = (bytes + page - 1) / page * page;
  if (front_ == nullptr) {
    void* front =
        ::mmap(nullptr, front_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (front == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    front_ = static_cast<std::byte*>(front);
  }
  if (front_bytes - front_used_ < rounded) return CUDA_ERROR_OUT_OF_MEMORY;
  void* backing =
      ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (backing == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(front_ + front_used_);
  front_used_ += rounded;
  allocations_[*address] = {&context, context.device, rounded, static_cast<std::byte*>(backing)};
  return CUDA_SUCCESS;
}

CUresult World::free(CUdeviceptr address) {
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  run_all();  // Freeing waits for the GPU, as the real one does.
  ::munmap(found->second.backing, found->second.bytes);
  allocations_.erase(found);
  return CUDA_SUCCESS;
}

std::size_t World::bytes_allocated(const Context& context) const {
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : allocations_)
    if (allocation.device == context.device) bytes += allocation.bytes;
  return bytes;
}

std::byte* World::at(CUdeviceptr address, std::size_t bytes) {
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return nullptr;
  --found;
  const std::size_t offset = address - found->first;
  if (offset > found->second.bytes || bytes > found->second.bytes - offset) return nullptr;
  return found->second.backing + offset;
}

std::optional<int> World::device_of(CUdeviceptr address) const {
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  --found;
  if (address - found->first >= found->second.bytes) return std::nullopt;
  return found->second.device;
}

CUdeviceptr World::begin_of(CUdeviceptr address) const {
  const auto found = allocations_.upper_bound(address);
  return device_of(address) ? std::prev(found)->first : 0;
}

// --- Memory of the host ---

World::HostKind World::kind_of(const void* address, std::size_t bytes) const {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  bool is_touched = false;
  for (const auto& [start, pinned] : pinned_) {
    const std::uintptr_t end = start + pinned.bytes;
    if (first >= start && first + bytes <= end) return HostKind::pinned;
    if (first < end && start < first + bytes) is_touched = true;
  }
  return is_touched ? HostKind::torn : HostKind::pageable;
}

void World::check_pinned_is_mapped() {
  for (const auto& [first, pinned] : pinned_)
    if (!is_mapped(reinterpret_cast<const void*>(first), pinned.bytes))
      violate("memory was unmapped while pinned");
}

CUresult World::pin(Context& context, void* address, std::size_t bytes, bool is_ours) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  // Pages are pinned, so that two ranges must not share one.
  const auto first = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(address) + bytes + page - 1) / page * page;
  std::uint64_t total = bytes;
  for (const auto& [start, pinned] : pinned_) {
    total += pinned.bytes;
    const auto other_first = start / page * page;
    const auto other_end = (start + pinned.bytes + page - 1) / page * page;
    if (first < other_end && other_first < end) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (!is_ours && bytes > settings.pin_call_max) return CUDA_ERROR_INVALID_VALUE;
  if (!is_ours)
    counts.pin_call_bytes_max = std::max<std::uint64_t>(counts.pin_call_bytes_max, bytes);
  if (total > settings.pin_total_max) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned_[reinterpret_cast<std::uintptr_t>(address)] = {&context, bytes, is_ours};
  counts.pinned_ranges = pinned_.size();
  return CUDA_SUCCESS;
}

CUresult World::unpin(void* address, bool is_ours) {
  if (!is_ours && settings.fail_unpins > 0) {
    --settings.fail_unpins;
    return CUDA_ERROR_UNKNOWN;
  }
  const auto found = pinned_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == pinned_.end() || found->second.is_ours != is_ours)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (!is_mapped(address, found->second.bytes)) violate("memory was unmapped while pinned");
  const auto touches = [&](const StreamQueue& stream) {
    if (stream.context->lost != CUDA_SUCCESS) return;
    for (const Work& work : stream.queue) {
      const auto first = reinterpret_cast<std::uintptr_t>(work.host);
      if (work.host_bytes > 0 && first < found->first + found->second.bytes &&
          found->first < first + work.host_bytes)
        violate("memory was unpinned while a copy of it was queued");
    }
  };
  for (const auto& [handle, stream] : streams) touches(*stream);
  for (const auto& [context, stream] : default_streams_) touches(*stream);
  pinned_.erase(found);
  counts.pinned_ranges = pinned_.size();
  return CUDA_SUCCESS;
}

std::size_t World::bytes_pinned(const void* address) const {
  const auto found = pinned_.find(reinterpret_cast<std::uintptr_t>(address));
  return found != pinned_.end() ? found->second.bytes : 0;
}

CUresult World::copy(StreamQueue& stream, void* host, CUdeviceptr address, std::size_t bytes,
                     bool is_to_host, bool is_launch) {
  std::byte* const gpu = at(address, bytes);
  if (gpu == nullptr || device_of(address) != stream.context->device)
    return CUDA_ERROR_INVALID_VALUE;
  const HostKind kind = kind_of(host, bytes);
  if (kind == HostKind::torn) return CUDA_ERROR_INVALID_VALUE;  // Over two registrations.
  ++counts.copies;
  if (is_to_host) counts.bytes_by_engine += bytes;
  Work work;
  work.is_copy = true;
  work.is_launch = is_launch;
  work.ends_block = !is_to_host;
  if (is_to_host) {
    work.is_to_host = true;
    work.start = [host, bytes] { std::memset(host, poison, bytes); };
    const bool is_corrupt = ++copies_to_host_ == settings.corrupt_copy;
    work.run = [host, gpu, bytes, is_corrupt] {
      std::memcpy(host, gpu, bytes);
      if (is_corrupt) static_cast<unsigned char*>(host)[bytes / 2] ^= 0x10;
    };
  } else if (kind == HostKind::pinned) {
    work.start = [gpu, bytes] { std::memset(gpu, poison, bytes); };
    work.run = [host, gpu, bytes] { std::memcpy(gpu, host, bytes); };
  } else {
    // The driver has taken the bytes when the call returns; they arrive later.
    const auto* first = static_cast<const std::byte*>(host);
    auto taken = std::make_shared<std::vector<std::byte>>(first, first + bytes);
    work.start = [gpu, bytes] { std::memset(gpu, poison, bytes); };
    work.run = [taken, gpu, bytes] { std::memcpy(gpu, taken->data(), bytes); };
  }
  if (kind == HostKind::pinned || is_to_host) {
    work.host = host;
    work.host_bytes = bytes;
  }
  const MarkPtr mark = work.mark;
  queue(stream, std::move(work));
  if (kind == HostKind::pinned) return CUDA_SUCCESS;
  ++counts.pageable_copies;
  if (!is_to_host) return CUDA_SUCCESS;
  if (!run_until(mark))
    return stream.context->lost != CUDA_SUCCESS ? stream.context->lost : CUDA_ERROR_UNKNOWN;
  return CUDA_SUCCESS;
}

}  // namespace ckpt::test
