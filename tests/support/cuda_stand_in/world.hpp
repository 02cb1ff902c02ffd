// World: GPUs that exist in memory only, as late and as unhelpful as the driver's rules allow.
//
// Nothing that is queued runs by itself: whoever asks or waits makes it run, a little and in an
// order drawn from the seed. A copy poisons its target when it starts, and reads its source only
// when it ends. Behaviour that the real driver leaves undefined counts as a violation.
//
// Threads: any, one at a time: the caller holds the lock of the driver's front.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/cuda_stand_in/control.hpp"
#include "support/cuda_stand_in/settings.hpp"

namespace ckpt::test {

inline constexpr unsigned char poison = 0xdb;

// Whether an error destroys the context that it is said of.
bool destroys_context(CUresult error);

// Mark: the end of something that was queued.
struct Mark {
  bool is_done = false;
};
using MarkPtr = std::shared_ptr<Mark>;

struct Context {
  int device = 0;
  std::uint64_t id = 0;       // Another one after each reset.
  std::uint64_t retains = 0;  // A primary context's count; for another: whether it still is.
  bool is_primary = true;
  bool is_active = false;
  CUresult lost = CUDA_SUCCESS;  // The error that destroyed it.
};

struct Work {
  std::vector<MarkPtr> after;
  MarkPtr mark = std::make_shared<Mark>();
  bool has_started = false;
  bool is_copy = false;
  bool is_kernel = false;
  bool is_launch = true;        // False: comes with the launch before it.
  bool is_on_engine = false;    // A copy to the host that has got its place in the engine's queue.
  bool ends_block = false;      // Another engine's work: a row of copies ends here.
  std::uint64_t sequence = 0;   // Counts all that was ever queued.
  std::function<void()> start;  // Poisons.
  std::function<void()> run;
  const void* host = nullptr;  // The host's memory that it touches.
  std::size_t host_bytes = 0;
  bool is_to_host = false;
};

struct StreamQueue {
  Context* context = nullptr;
  bool is_blocking = true;  // Takes part in the order of the default stream.
  bool has_priority = false;
  bool is_held = false;          // By a test: what runs there goes on for ever.
  std::uint64_t connection = 0;  // The queue of the hardware.
  std::uint64_t launches = 0;    // In the queue.
  bool is_capturing = false;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id capture_thread;
  bool is_destroyed = false;
  bool is_gone = false;  // With its context.
  std::deque<Work> queue;
  MarkPtr last;
};

struct EventState {
  Context* context = nullptr;
  MarkPtr mark;  // The newest record's; null: never recorded.
};

// Function: a kernel of a module.
struct Function {
  Context* context = nullptr;
  std::string name;
};

class World {
 public:
  explicit World(const Settings& settings);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Counts a call, and has it fail, or the process die, when that was asked for.
  CUresult enter(const char* name);
  // Some work, perhaps none, as it happens on a GPU between two questions.
  void progress();
  // Until `mark` is done. False: that will never be.
  bool run_until(const MarkPtr& mark);
  void run_all();
  void queue(StreamQueue& stream, Work work);
  StreamQueue& default_stream(Context& context);
  // The calling thread's.
  StreamQueue& per_thread_stream(Context& context);
  void lose(Context& context, CUresult error);
  void activate(Context& context);
  // All that was made in it, and the work under way.
  void destroy(Context& context);
  void shut_down();

  // --- Memory of the GPUs ---
  CUresult allocate(Context& context, std::size_t bytes, CUdeviceptr* address);
  CUresult free(CUdeviceptr address);
  std::size_t bytes_allocated(const Context& context) const;
  // Null: no memory of a GPU, or not all of it.
  std::byte* at(CUdeviceptr address, std::size_t bytes);
  std::optional<int> device_of(CUdeviceptr address) const;
  // Where the allocation begins that the address lies in; 0: in none.
  CUdeviceptr begin_of(CUdeviceptr address) const;

  // --- Memory of the host ---
  enum class HostKind : std::uint8_t { pageable, pinned, torn };
  HostKind kind_of(const void* address, std::size_t bytes) const;
  CUresult pin(Context& context, void* address, std::size_t bytes, bool is_ours);
  void check_pinned_is_mapped();
  CUresult unpin(void* address, bool is_ours);
  std::size_t bytes_pinned(const void* address) const;  // By one registration; 0: by none.

  CUresult copy(StreamQueue& stream, void* host, CUdeviceptr address, std::size_t bytes,
                bool is_to_host, bool is_launch = true);

  void violate(std::string what);
  std::vector<std::size_t> shuffled(std::size_t count);

  Settings settings;
  StandInCounts counts;
  std::string violations;
  std::string failed_call;                         // The newest that an error was planted at.
  std::vector<std::unique_ptr<Context>> contexts;  // The primary ones, by device.
  std::vector<std::unique_ptr<Context>> others;    // Made by cuCtxCreate; never forgotten.
  std::map<CUstream, std::unique_ptr<StreamQueue>> streams;
  std::map<CUevent, std::unique_ptr<EventState>> events;
  // Events that are no more. They keep their addresses, so that whoever still uses one is seen.
  std::vector<std::unique_ptr<EventState>> former_events;
  std::vector<std::unique_ptr<Function>> functions;  // Found in modules; never forgotten.
  std::uint64_t waits = 0;

 private:
  struct Allocation {
    Context* context = nullptr;
    int device = 0;
    std::size_t bytes = 0;
    std::byte* backing = nullptr;
  };
  struct Pinned {
    Context* context = nullptr;
    std::size_t bytes = 0;
    bool is_ours = false;  // By cuMemHostAlloc.
  };

  bool step();  // False: nothing can run.
  void make_room(StreamQueue& stream);
  bool is_kernel_waiting(const Context& context) const;
  void drop_work(StreamQueue& stream);
  bool may_run(StreamQueue& stream);
  bool waits_behind_others(const StreamQueue& stream) const;
  void put_on_engine(StreamQueue& stream);
  bool is_next_on_engine(const StreamQueue& stream);
  void advance(StreamQueue& stream);
  void die(const Work& work) const;
  void end_copy(StreamQueue& stream, const std::function<void()>& transfer);
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  std::mt19937_64 random_;
  std::uint64_t calls_ = 0;
  std::uint64_t copies_begun_ = 0;
  std::uint64_t copies_ended_ = 0;
  std::uint64_t copies_to_host_ = 0;
  std::uint64_t bytes_queued_ = 0;
  std::uint64_t works_queued_ = 0;
  std::map<int, std::deque<std::pair<MarkPtr, std::size_t>>> engines_;  // By GPU: copies, bytes.
  std::map<CUdeviceptr, Allocation> allocations_;
  // Addresses that the host cannot touch. Handed out one behind the other, as a driver does, so
  // that neighbours are often two allocations.
  std::byte* front_ = nullptr;
  std::size_t front_used_ = 0;
  std::map<std::uintptr_t, Pinned> pinned_;
  std::map<Context*, std::unique_ptr<StreamQueue>> default_streams_;
  std::map<std::pair<Context*, std::thread::id>, StreamQueue*> per_thread_streams_;
  std::uint64_t context_ids_ = 0;
  bool is_shut_down_ = false;
};

}  // namespace ckpt::test
