// The stand-in's front: functions with the driver's names, found through cuGetProcAddress only.
//
// None of them is exported by its own name but those that the real library is opened by, so that
// code which links against the driver instead of asking for versions does not get far.
#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "support/cuda_stand_in/kernels.hpp"
#include "support/cuda_stand_in/pin_lock.hpp"
#include "support/cuda_stand_in/world.hpp"

namespace ckpt::test {

namespace {

// The library has no object to hang them on: it is opened, called, and lives with the process.
std::mutex& world_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::unique_ptr<World>& world_place() {
  static auto* place = new std::unique_ptr<World>();
  return *place;
}
PinLock& pin_lock() {
  static auto* lock = new PinLock(world_mutex());
  return *lock;
}
thread_local std::vector<Context*> current;
std::thread::id trainer;  // The thread that has set the stand-in anew.
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool read_settings(const char* words, Settings& settings) {
  const std::pair<const char*, std::uint64_t Settings::*> known[] = {
      {"seed", &Settings::seed},
      {"devices", &Settings::devices},
      {"version", &Settings::version},
      {"eager", &Settings::eager},
      {"fail_at", &Settings::fail_at},
      {"error", &Settings::error},
      {"kill_at", &Settings::kill_at},
      {"kill_copy", &Settings::kill_copy},
      {"fail_copy", &Settings::fail_copy},
      {"corrupt_copy", &Settings::corrupt_copy},
      {"pin_call_max", &Settings::pin_call_max},
      {"pin_total_max", &Settings::pin_total_max},
      {"pin_ms", &Settings::pin_ms},
      {"fail_unpins", &Settings::fail_unpins},
      {"refuses_batches", &Settings::refuses_batches},
      {"drop_wait", &Settings::drop_wait},
      {"pending_max", &Settings::pending_max},
      {"host_pointers", &Settings::host_pointers},
      {"refuses_ptx", &Settings::refuses_ptx},
      {"refuses_values", &Settings::refuses_values},
      {"fail_launch", &Settings::fail_launch},
      {"lacks_newer", &Settings::lacks_newer},
      {"fifo", &Settings::fifo},
      {"connections", &Settings::connections},
      {"dma_after_death", &Settings::dma_after_death}};
  const std::string text = words != nullptr ? words : "";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const auto& one) {
      return word.substr(0, equals) == one.first;
    });
    if (equals == std::string::npos || found == std::end(known)) return false;
    settings.*(found->second) = std::strtoull(word.c_str() + equals + 1, nullptr, 10);
  }
  return true;
}

World& world() {
  std::unique_ptr<World>& place = world_place();
  if (place) return *place;
  Settings settings;
  if (!read_settings(std::getenv("CKPT_CUDA_STAND_IN"), settings)) std::abort();
  place = std::make_unique<World>(settings);
  return *place;
}

// Call: one call of the driver, with the lock, and with all that may be wrong before it begins.
class Call {
 public:
  enum class Needs : std::uint8_t { nothing, context };

  // `name` is that of the function which makes it.
  explicit Call(Needs needs = Needs::context, bool is_counted = true,
                const char* name = __builtin_FUNCTION())
      : Call(pin_lock().enter(), needs, is_counted, name) {}
  Call(PinLock::Entry entry, Needs needs, bool is_counted, const char* name)
      : lock_(std::move(entry.lock)), world_(world()), is_counted_(is_counted) {
    world_.counts.calls_behind_pins += entry.bytes_waited > 0 ? 1 : 0;
    world_.counts.bytes_waited_max = std::max(world_.counts.bytes_waited_max, entry.bytes_waited);
    if (is_counted) result_ = world_.enter(name);
    Context* const context = current.empty() ? nullptr : current.back();
    if (result_ != CUDA_SUCCESS) {
      lose_by_planted(context);
      return;
    }
    if (needs == Needs::nothing) return;
    if (context == nullptr) {
      result_ = CUDA_ERROR_INVALID_CONTEXT;
    } else if (context->retains == 0 || !context->is_active) {
      result_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else {
      result_ = context->lost;
    }
  }

  bool fails() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  World& operator*() { return world_; }
  World* operator->() { return &world_; }

  bool is_by_trainer() const { return std::this_thread::get_id() == trainer; }
  // Null: no such stream, which `result` then says.
  StreamQueue* stream(CUstream handle) {
    StreamQueue* const found = known_stream(handle);
    if (found == nullptr || !found->is_destroyed) return found;
    // The real driver may read memory that is no more.
    if (is_counted_) world_.violate("a stream that is no more was used");
    result_ = CUDA_ERROR_INVALID_HANDLE;
    return nullptr;
  }
  // The same, also after its end.
  StreamQueue* known_stream(CUstream handle) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY)
      return &world_.default_stream(*current.back());
    if (handle == CU_STREAM_PER_THREAD) return &world_.per_thread_stream(*current.back());
    const auto found = world_.streams.find(handle);
    if (found != world_.streams.end() && found->second->is_gone) {
      if (is_counted_) world_.violate("a stream of a context that is no more was used");
      result_ = CUDA_ERROR_INVALID_HANDLE;
      return nullptr;
    }
    if (found != world_.streams.end()) return found->second.get();
    result_ = CUDA_ERROR_INVALID_HANDLE;
    return nullptr;
  }
  // For work: a stream that is captured takes none of it here.
  StreamQueue* working_stream(CUstream handle) {
    StreamQueue* const found = stream(handle);
    if (found == nullptr) return nullptr;
    if (found->context->lost != CUDA_SUCCESS) {
      result_ = found->context->lost;
      return nullptr;
    }
    const bool is_default = found == &world_.default_stream(*found->context);
    for (const auto& [other, stream] : world_.streams) {
      const bool concerns = stream.get() == found || (is_default && stream->is_blocking);
      if (!concerns || !stream->is_capturing || stream->context != found->context) continue;
      world_.violate("a stream that is being captured was used");
      result_ =
          is_default ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      return nullptr;
    }
    return found;
  }
  // Calls that the driver forbids while anybody captures a graph in the global mode, unless the
  // calling thread is in the relaxed one: they break that capture.
  void must_not_break_graphs() {
    if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    for (const auto& [handle, stream] : world_.streams) {
      if (!stream->is_capturing || stream->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
      const bool is_of_all = capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                             stream->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
      if (is_of_all || stream->capture_thread == std::this_thread::get_id())
        world_.violate("a call has broken the capture of a CUDA graph");
    }
  }
  EventState* event(CUevent handle) {
    const auto found = world_.events.find(handle);
    if (found != world_.events.end()) return found->second.get();
    for (const auto& former : world_.former_events)
      if (reinterpret_cast<CUevent>(former.get()) == handle)
        world_.violate("an event that is no more was used");
    result_ = CUDA_ERROR_INVALID_HANDLE;
    return nullptr;
  }

 private:
  // Such an error is never said of a context that lives on.
  void lose_by_planted(Context* context) {
    if (!destroys_context(result_)) return;
    if (context != nullptr) return world_.lose(*context, result_);
    for (const auto& any : world_.contexts) world_.lose(*any, result_);
  }

  std::unique_lock<std::mutex> lock_;
  World& world_;
  const bool is_counted_;
  CUresult result_ = CUDA_SUCCESS;
};

// --- The driver's functions ---

CUresult driver_version(int* version) {
  const std::lock_guard lock(world_mutex());
  *version = static_cast<int>(world().settings.version);
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult, const char** text) {
  *text = "STAND_IN_ERROR";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "an error of the stand-in driver";
  return CUDA_SUCCESS;
}
CUresult init(unsigned int) {
  Call call(Call::Needs::nothing);
  return call.result();
}
CUresult device_count(int* count) {
  Call call(Call::Needs::nothing);
  *count = static_cast<int>(call->contexts.size());
  return call.result();
}
CUresult device_at(CUdevice* device, int ordinal) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= call->contexts.size())
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  if (attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
    return CUDA_ERROR_INVALID_VALUE;
  *value = static_cast<int>(call->settings.host_pointers);
  return CUDA_SUCCESS;
}
CUresult device_name(char* name, int size, CUdevice device) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  const std::string text = "stand-in " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* context, CUdevice device) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  Context* const found = call->contexts[static_cast<std::size_t>(device)].get();
  ++found->retains;
  call->activate(*found);
  ++call->counts.retained_contexts;
  *context = reinterpret_cast<CUcontext>(found);
  return CUDA_SUCCESS;
}
CUresult release(CUdevice device) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  Context& context = *call->contexts[static_cast<std::size_t>(device)];
  if (context.retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --context.retains;
  --call->counts.retained_contexts;
  return CUDA_SUCCESS;
}
CUresult reset_primary(CUdevice device) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  call->destroy(*call->contexts[static_cast<std::size_t>(device)]);
  return CUDA_SUCCESS;
}
CUresult create_context(CUcontext* context, unsigned int, CUdevice device) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  auto made = std::make_unique<Context>();
  made->device = device;
  made->is_primary = false;
  made->retains = 1;
  call->activate(*made);
  current.push_back(made.get());
  *context = reinterpret_cast<CUcontext>(made.get());
  call->others.push_back(std::move(made));
  return CUDA_SUCCESS;
}
CUresult destroy_context(CUcontext handle) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  auto* const context = reinterpret_cast<Context*>(handle);
  if (context->is_primary || !context->is_active) return CUDA_ERROR_INVALID_CONTEXT;
  call->destroy(*context);
  if (!current.empty() && current.back() == context) current.pop_back();
  return CUDA_SUCCESS;
}
CUresult context_id(CUcontext handle, unsigned long long* id) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  const auto* const context = reinterpret_cast<const Context*>(handle);
  if (context == nullptr || !context->is_active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}
CUresult push(CUcontext context) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  auto* const pushed = reinterpret_cast<Context*>(context);
  if (pushed != nullptr && !pushed->is_primary && !pushed->is_active)
    call->violate("a context that is no more was used");
  if (pushed == nullptr || !pushed->is_active) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(pushed);
  return CUDA_SUCCESS;
}
CUresult pop(CUcontext* context) {
  Call call(Call::Needs::nothing);
  // Also when an error was planted here: a test's own thread must find its context again.
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current.back());
  current.pop_back();
  return call.result();
}
CUresult synchronize() {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  for (const auto& [handle, stream] : call->streams)
    if (stream->is_capturing && stream->context == current.back())
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  call->run_all();
  return current.back()->lost;
}
CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  Call call(Call::Needs::nothing);
  if (call.fails()) return call.result();
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

CUresult priority_range(int* lowest, int* highest) {
  Call call;
  if (call.fails()) return call.result();
  *lowest = 0;
  *highest = -5;
  return CUDA_SUCCESS;
}
CUresult create_priority_stream(CUstream* handle, unsigned int flags, int priority) {
  Call call;
  if (call.fails()) return call.result();
  auto stream = std::make_unique<StreamQueue>();
  stream->context = current.back();
  stream->has_priority = priority < 0;
  stream->is_blocking = flags != CU_STREAM_NON_BLOCKING;
  if (call->settings.connections != 0)
    stream->connection = call->streams.size() % call->settings.connections;
  *handle = reinterpret_cast<CUstream>(stream.get());
  call->streams[*handle] = std::move(stream);
  ++call->counts.live_streams;
  return CUDA_SUCCESS;
}
CUresult create_stream(CUstream* handle, unsigned int flags) {
  return create_priority_stream(handle, flags, 0);
}
CUresult destroy_stream(CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  stream->is_destroyed = true;  // Queued work still runs.
  --call->counts.live_streams;
  return CUDA_SUCCESS;
}
CUresult query_stream(CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  call->progress();
  if (stream->context->lost != CUDA_SUCCESS) return stream->context->lost;
  return stream->queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult synchronize_stream(CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  const bool has_ended = call->run_until(stream->last);
  if (stream->context->lost != CUDA_SUCCESS) return stream->context->lost;
  return has_ended ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
// The one question by which a stream that was destroyed can be told, as by the real driver.
CUresult context_of_stream(CUstream handle, CUcontext* context) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.known_stream(handle);
  if (stream == nullptr) return call.result();
  if (stream->is_destroyed) return CUDA_ERROR_INVALID_HANDLE;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}
CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  *status = stream->is_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream != &call->default_stream(*stream->context)) return CUDA_SUCCESS;
  for (const auto& [other, one] : call->streams) {
    if (one->is_capturing && one->is_blocking && one->context == stream->context)
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}
CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  if (stream == &call->default_stream(*stream->context))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->is_capturing = true;
  stream->capture_mode = mode;
  stream->capture_thread = std::this_thread::get_id();
  return CUDA_SUCCESS;
}
CUresult end_capture(CUstream handle, CUgraph*) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  stream->is_capturing = false;
  return CUDA_SUCCESS;
}

CUresult create_event(CUevent* handle, unsigned int) {
  Call call;
  if (call.fails()) return call.result();
  auto event = std::make_unique<EventState>();
  event->context = current.back();
  *handle = reinterpret_cast<CUevent>(event.get());
  call->events[*handle] = std::move(event);
  ++call->counts.live_events;
  return CUDA_SUCCESS;
}
CUresult destroy_event(CUevent handle) {
  Call call;
  if (call.fails()) return call.result();
  if (call.event(handle) == nullptr) return call.result();
  call->former_events.push_back(std::move(call->events.at(handle)));
  call->events.erase(handle);
  --call->counts.live_events;
  return CUDA_SUCCESS;
}
CUresult record(CUevent handle, CUstream stream_handle) {
  Call call;
  if (call.fails()) return call.result();
  EventState* const event = call.event(handle);
  StreamQueue* const stream = call.working_stream(stream_handle);
  if (event == nullptr || stream == nullptr) return call.result();
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  Work work;
  event->mark = work.mark;
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}
CUresult query_event(CUevent handle) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  EventState* const event = call.event(handle);
  if (event == nullptr) return call.result();
  call->progress();
  if (event->context->lost != CUDA_SUCCESS) return event->context->lost;
  return event->mark == nullptr || event->mark->is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult synchronize_event(CUevent handle) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  EventState* const event = call.event(handle);
  if (event == nullptr) return call.result();
  const bool has_ended = call->run_until(event->mark);
  if (event->context->lost != CUDA_SUCCESS) return event->context->lost;
  return has_ended ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned int) {
  Call call;
  if (call.fails()) return call.result();
  EventState* const event = call.event(handle);
  StreamQueue* const stream = call.working_stream(stream_handle);
  if (event == nullptr || stream == nullptr) return call.result();
  if (++call->waits == call->settings.drop_wait) return CUDA_SUCCESS;
  if (event->mark == nullptr) return CUDA_SUCCESS;  // Never recorded: waits for nothing.
  Work work;
  work.after.push_back(event->mark);
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult to_host(void* host, CUdeviceptr address, std::size_t bytes, CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  call->counts.copies_by_trainer += call.is_by_trainer() ? 1 : 0;
  return call->copy(*stream, host, address, bytes, true);
}
CUresult to_device(CUdeviceptr address, const void* host, std::size_t bytes, CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  return call->copy(*stream, const_cast<void*>(host), address, bytes, false);
}
CUresult within_gpu(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  std::byte* const to = call->at(target, bytes);
  const std::byte* const from = call->at(source, bytes);
  if (to == nullptr || from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.ends_block = true;
  work.run = [=] { std::memcpy(to, from, bytes); };
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}
CUresult set_words(CUdeviceptr address, unsigned int word, std::size_t count, CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  std::byte* const gpu = call->at(address, count * sizeof(word));
  if (gpu == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++call->counts.words_set;
  Work work;
  work.is_kernel = true;
  work.ends_block = true;
  work.run = [=] { std::fill_n(reinterpret_cast<unsigned int*>(gpu), count, word); };
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}
CUresult write_value(CUstream handle, CUdeviceptr address, unsigned int word, unsigned int) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  std::byte* const gpu = call->at(address, sizeof(word));
  if (gpu == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call->settings.refuses_values != 0) return CUDA_ERROR_NOT_SUPPORTED;
  ++call->counts.words_written;
  Work work;
  work.ends_block = true;
  work.run = [=] { std::memcpy(gpu, &word, sizeof(word)); };
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}
CUresult copy_batch(CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes,
                    std::size_t count, CUmemcpyAttributes* attributes, std::size_t* first,
                    std::size_t attribute_count, CUstream handle) {
  Call call;
  if (call.fails()) return call.result();
  if (handle == nullptr || handle == CU_STREAM_LEGACY || count == 0 || attribute_count != 1 ||
      *first != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (call->settings.refuses_batches != 0) return CUDA_ERROR_NOT_SUPPORTED;
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  if (call->settings.host_pointers == 0) {
    call->lose(*stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
    call->violate("a batch of copies does not read its sources in the order of the stream");
  ++call->counts.batches;
  call->counts.copies_by_trainer += call.is_by_trainer() ? count : 0;
  const std::vector<std::size_t> order = call->shuffled(count);  // Unordered within the batch.
  for (const std::size_t i : order) {
    const CUresult result = call->copy(*stream, reinterpret_cast<void*>(targets[i]), sources[i],
                                       sizes[i], true, i == order.front());
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult copy_batch_12080(CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes,
                          std::size_t count, CUmemcpyAttributes* attributes, std::size_t* first,
                          std::size_t attribute_count, std::size_t* failed, CUstream handle) {
  if (failed == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *failed = SIZE_MAX;
  return copy_batch(targets, sources, sizes, count, attributes, first, attribute_count, handle);
}

CUresult load_module(CUmodule* module, const void* image) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  const CUresult result = check_module(*call, image);
  if (result == CUDA_SUCCESS) *module = reinterpret_cast<CUmodule>(current.back());
  return result;
}
CUresult module_function(CUfunction* function, CUmodule module, const char* name) {
  Call call;
  if (call.fails()) return call.result();
  if (!has_kernel(name)) return CUDA_ERROR_NOT_FOUND;
  call->functions.push_back(
      std::make_unique<Function>(Function{reinterpret_cast<Context*>(module), name}));
  *function = reinterpret_cast<CUfunction>(call->functions.back().get());
  return CUDA_SUCCESS;
}
CUresult launch_kernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                       unsigned, unsigned, unsigned, CUstream handle, void** arguments, void**) {
  Call call;
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(handle);
  if (stream == nullptr) return call.result();
  const auto* const found = reinterpret_cast<const Function*>(function);
  if (found->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  return ckpt::test::launch_kernel(*call, *stream, found->name, {blocks, threads, arguments});
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  return call->allocate(*current.back(), bytes, address);
}
CUresult free_memory(CUdeviceptr address) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  return call->free(address);
}
CUresult memory_info(std::size_t* free, std::size_t* total) {
  Call call;
  if (call.fails()) return call.result();
  *total = 1ull << 40;
  *free = *total - call->bytes_allocated(*current.back());
  return CUDA_SUCCESS;
}
CUresult allocate_host(void** address, std::size_t bytes, unsigned int) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*address, 0xab, bytes);
  const CUresult result = call->pin(*current.back(), *address, bytes, true);
  if (result != CUDA_SUCCESS) std::free(*address);
  return result;
}
CUresult free_host(void* address) {
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  const CUresult result = call->unpin(address, true);
  if (result == CUDA_SUCCESS) std::free(address);
  return result;
}
CUresult register_host(void* address, std::size_t bytes, unsigned int flags) {
  pin_lock().let_others_pass();
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  if ((flags & CU_MEMHOSTREGISTER_PORTABLE) == 0)
    call->violate("memory was pinned for one context only");
  call->counts.pins_by_trainer += call.is_by_trainer() ? 1 : 0;
  pin_lock().block(bytes, std::chrono::milliseconds(call->settings.pin_ms));
  return call->pin(*current.back(), address, bytes, false);
}
CUresult unregister_host(void* address) {
  pin_lock().let_others_pass();
  Call call;
  if (call.fails()) return call.result();
  call.must_not_break_graphs();
  pin_lock().block(call->bytes_pinned(address), std::chrono::milliseconds(call->settings.pin_ms));
  return call->unpin(address, false);
}
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Call call;
  if (call.fails()) return call.result();
  const auto device = call->device_of(address);
  const bool is_host =
      call->kind_of(reinterpret_cast<const void*>(address), 1) == World::HostKind::pinned;
  if (is_host && attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<unsigned int*>(data) = CU_MEMORYTYPE_HOST;
    return CUDA_SUCCESS;
  }
  if (is_host && attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    *static_cast<int*>(data) = current.back()->device;
    return CUDA_SUCCESS;
  }
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    *static_cast<int*>(data) = *device;
  } else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<unsigned int*>(data) = CU_MEMORYTYPE_DEVICE;
  } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
    *static_cast<CUdeviceptr*>(data) = call->begin_of(address);
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

struct Known {
  const char* name;
  int since;  // The version of CUDA that has this signature; the newest that fits is given.
  void* function;
};

template <class Function>
Known known(const char* name, int since, Function* function) {
  return {name, since, reinterpret_cast<void*>(function)};
}

const std::vector<Known>& functions() {
  static const std::vector<Known> all = {
      known("cuGetErrorName", 6000, error_name),
      known("cuGetErrorString", 6000, error_string),
      known("cuInit", 2000, init),
      known("cuDeviceGetCount", 2000, device_count),
      known("cuDeviceGet", 2000, device_at),
      known("cuDeviceGetAttribute", 2000, device_attribute),
      known("cuDeviceGetName", 2000, device_name),
      known("cuDevicePrimaryCtxRetain", 7000, retain),
      known("cuDevicePrimaryCtxRelease", 11000, release),
      known("cuDevicePrimaryCtxReset", 11000, reset_primary),
      known("cuCtxCreate", 3020, create_context),
      known("cuCtxDestroy", 4000, destroy_context),
      known("cuCtxGetId", 12000, context_id),
      known("cuCtxPushCurrent", 4000, push),
      known("cuCtxPopCurrent", 4000, pop),
      known("cuCtxSynchronize", 2000, synchronize),
      known("cuThreadExchangeStreamCaptureMode", 10010, exchange_capture_mode),
      known("cuCtxGetStreamPriorityRange", 5050, priority_range),
      known("cuStreamCreate", 2000, create_stream),
      known("cuStreamCreateWithPriority", 5050, create_priority_stream),
      known("cuStreamDestroy", 4000, destroy_stream),
      known("cuStreamQuery", 2000, query_stream),
      known("cuStreamSynchronize", 2000, synchronize_stream),
      known("cuStreamGetCtx", 9020, context_of_stream),
      known("cuStreamIsCapturing", 10000, is_capturing),
      known("cuStreamBeginCapture", 10010, begin_capture),
      known("cuStreamEndCapture", 10000, end_capture),
      known("cuStreamWaitEvent", 3020, wait_event),
      known("cuEventCreate", 2000, create_event),
      known("cuEventDestroy", 4000, destroy_event),
      known("cuEventRecord", 2000, record),
      known("cuEventQuery", 2000, query_event),
      known("cuEventSynchronize", 2000, synchronize_event),
      known("cuMemcpyDtoHAsync", 3020, to_host),
      known("cuMemcpyHtoDAsync", 3020, to_device),
      known("cuMemcpyDtoDAsync", 3020, within_gpu),
      known("cuMemsetD32Async", 3020, set_words),
      known("cuStreamWriteValue32", 8000, write_value),
      known("cuMemcpyBatchAsync", 12080, copy_batch_12080),
      known("cuMemcpyBatchAsync", 13000, copy_batch),
      known("cuModuleLoadData", 2000, load_module),
      known("cuModuleGetFunction", 2000, module_function),
      known("cuLaunchKernel", 4000, launch_kernel),
      known("cuMemAlloc", 3020, allocate),
      known("cuMemFree", 3020, free_memory),
      known("cuMemGetInfo", 3020, memory_info),
      known("cuMemHostAlloc", 2020, allocate_host),
      known("cuMemFreeHost", 2000, free_host),
      known("cuMemHostRegister", 6050, register_host),
      known("cuMemHostUnregister", 4000, unregister_host),
      known("cuPointerGetAttribute", 4000, pointer_attribute)};
  return all;
}

CUresult find(const char* name, void** address, int version) {
  const std::lock_guard lock(world_mutex());
  *address = nullptr;
  const auto ours = static_cast<int>(world().settings.version);
  if (version > ours) return CUDA_ERROR_INVALID_VALUE;
  constexpr int first_newer = 12000;
  const bool is_lacking = world().settings.lacks_newer != 0;
  for (const Known& one : functions()) {
    if (is_lacking && one.since >= first_newer) continue;
    if (std::strcmp(one.name, name) == 0 && one.since <= version && one.since <= ours)
      *address = one.function;
  }
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// --- The tests' side ---

bool control_reset(const char* words) {
  const std::lock_guard lock(world_mutex());
  Settings settings;
  if (!read_settings(words, settings)) return false;
  current.clear();
  trainer = std::this_thread::get_id();
  world_place() = std::make_unique<World>(settings);
  return true;
}
StandInCounts control_counts() {
  const std::lock_guard lock(world_mutex());
  return world().counts;
}
const char* control_violations() {
  const std::lock_guard lock(world_mutex());
  world().check_pinned_is_mapped();
  return world().violations.c_str();
}
int control_launch(void* handle, void (*work_function)(void*), void* argument) {
  // No call of the driver's: nothing is planted here.
  Call call(Call::Needs::context, false);
  if (call.fails()) return call.result();
  StreamQueue* const stream = call.working_stream(static_cast<CUstream>(handle));
  if (stream == nullptr) return call.result();
  Work work;
  work.is_kernel = true;
  work.ends_block = true;
  work.run = [=] { work_function(argument); };
  call->queue(*stream, std::move(work));
  return CUDA_SUCCESS;
}
// Without the lock: called from work, which runs under it, or while nothing runs.
void control_peek(std::uint64_t address, void* target, std::size_t bytes) {
  if (const std::byte* gpu = world().at(address, bytes)) std::memcpy(target, gpu, bytes);
}
void control_poke(std::uint64_t address, const void* source, std::size_t bytes) {
  if (std::byte* gpu = world().at(address, bytes)) std::memcpy(gpu, source, bytes);
}
void control_hold(void* handle, bool is_held) {
  const std::lock_guard lock(world_mutex());
  const auto found = world().streams.find(static_cast<CUstream>(handle));
  if (found != world().streams.end()) found->second->is_held = is_held;
}
void control_run_all() {
  const std::lock_guard lock(world_mutex());
  world().run_all();
}

void control_plant(std::uint64_t after, int error) {
  const std::lock_guard lock(world_mutex());
  world().settings.fail_at = after == 0 ? 0 : world().counts.calls + after;
  // A copy that is to fail has an error of its own, from the words.
  if (after != 0) world().settings.error = static_cast<std::uint64_t>(error);
}
const char* control_failed_call() {
  const std::lock_guard lock(world_mutex());
  return world().failed_call.c_str();
}
void control_shut_down() {
  const std::lock_guard lock(world_mutex());
  world().shut_down();
}
void* control_find(const char* name, int version) {
  void* address = nullptr;
  (void)find(name, &address, version);
  return address;
}

}  // namespace

}  // namespace ckpt::test

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

STAND_IN_EXPORT CUresult cuDriverGetVersion(int* version) {
  return ckpt::test::driver_version(version);
}
#undef cuGetProcAddress
STAND_IN_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** address, int version,
                                             cuuint64_t, CUdriverProcAddressQueryResult* found) {
  // Drivers before it have the older one alone.
  if (ckpt::test::world().settings.version < 12000) std::abort();
  const CUresult result = ckpt::test::find(name, address, version);
  if (found != nullptr)
    *found =
        *address != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return result;
}
STAND_IN_EXPORT CUresult cuGetProcAddress(const char* name, void** address, int version,
                                          cuuint64_t) {
  return ckpt::test::find(name, address, version);
}
STAND_IN_EXPORT const ckpt::test::StandInControl cuda_stand_in = {
    ckpt::test::control_reset,     ckpt::test::control_counts, ckpt::test::control_violations,
    ckpt::test::control_launch,    ckpt::test::control_peek,   ckpt::test::control_poke,
    ckpt::test::control_run_all,   ckpt::test::control_plant,  ckpt::test::control_failed_call,
    ckpt::test::control_shut_down, ckpt::test::control_find,   ckpt::test::control_hold};
