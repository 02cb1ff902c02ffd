// Control: a test's calls to the stand-in driver, beside the driver's own functions.
//
// Found as the C symbol `cuda_stand_in` of the library, so that a test links nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::test {

struct StandInCounts {
  std::uint64_t calls = 0;              // Calls of the driver's functions, by name looked up.
  std::uint64_t copies = 0;             // Between host and GPU.
  std::uint64_t copies_by_trainer = 0;  // To the host, by the thread that has set it anew.
  std::uint64_t bytes_by_engine = 0;    // Of copies to the host.
  std::uint64_t bytes_by_kernel = 0;    // That the kernel for changed tensors has copied.
  std::uint64_t batches = 0;            // Calls of cuMemcpyBatchAsync.
  std::uint64_t kernels = 0;            // Launches of libckpt's kernels.
  std::uint64_t blocks_max = 0;         // The largest launch for fingerprints that read something.
  std::uint64_t words_set = 0;          // Calls of cuMemsetD32Async.
  std::uint64_t words_written = 0;      // Calls of cuStreamWriteValue32.
  std::uint64_t launches_blocked = 0;   // Calls that waited until a stream had room.
  // Kernels of streams without priority that were launched while others had not run: these wait
  // for all of them where all streams share one queue of the hardware.
  std::uint64_t kernels_behind_others = 0;
  std::uint64_t pageable_copies = 0;   // To or from memory that is not pinned: the caller waited.
  std::uint64_t bytes_queued_max = 0;  // Of copies to the host, at one moment.
  // With fifo=1: bytes that a copy of a stream without priority had to wait for at most.
  std::uint64_t bytes_ahead_max = 0;
  std::uint64_t pin_call_bytes_max = 0;  // Of one registration: other calls wait that long.
  std::uint64_t pins_by_trainer = 0;     // On the thread that has set the stand-in anew.
  // With pin_ms: calls of other threads that waited for a registration, or for its end, and the
  // most bytes that one of them waited for.
  std::uint64_t calls_behind_pins = 0;
  std::uint64_t bytes_waited_max = 0;
  std::uint64_t live_streams = 0;
  std::uint64_t live_events = 0;
  std::uint64_t retained_contexts = 0;
  std::uint64_t pinned_ranges = 0;
};

struct StandInControl {
  // Everything new: "seed=7 devices=2 version=13000 eager=0 fail_at=12 error=700 kill_at=12
  // kill_copy=3 fail_copy=3 pin_call_max=1073741824 pin_total_max=0 pin_ms=20 fail_unpins=1
  // refuses_batches=1 drop_wait=4 pending_max=64 host_pointers=0 lacks_newer=1 fifo=1
  // connections=1 refuses_ptx=1 fail_launch=2 dma_after_death=1 corrupt_copy=4", see Settings in
  // settings.hpp. Unknown words are an error. The environment's CKPT_CUDA_STAND_IN is read in the
  // same way at the first call.
  bool (*reset)(const char* words);
  StandInCounts (*counts)();
  // Calls that the real driver leaves undefined, one line each; empty: none.
  const char* (*violations)();
  // Work of the trainer's: runs in the order of the stream, and may use peek and poke only.
  int (*launch)(void* stream, void (*work)(void*), void* argument);
  // The GPU's memory as it is at this moment, whatever is queued.
  void (*peek)(std::uint64_t address, void* target, std::size_t bytes);
  void (*poke)(std::uint64_t address, const void* source, std::size_t bytes);
  // Runs all that is queued.
  void (*run_all)();
  // The `after`th call from now on fails with `error`; 0: none does any more.
  void (*plant)(std::uint64_t after, int error);
  // The function that the newest error was planted at; empty: none yet.
  const char* (*failed_call)();
  // As at the end of a process, where the driver goes before those that use it.
  void (*shut_down)();
  // A function by name and version, as cuGetProcAddress finds it.
  void* (*find)(const char* name, int version);
  // The front of the stream runs on and on, as a persistent kernel does, until it is let go.
  void (*hold)(void* stream, bool is_held);
};

}  // namespace ckpt::test
