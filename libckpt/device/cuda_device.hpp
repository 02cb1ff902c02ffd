// CudaDevice: one GPU as a Device: its primary context, a stream for captures, one for restores.
//
// Threads:   as Device; `ckpt-gpu` watches the copies under way.
// Lifetime:  the driver and the pins outlive it.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "device/cuda_batches.hpp"
#include "device/cuda_queue.hpp"
#include "device/poll_pause.hpp"

namespace ckpt::device {

class CudaDevice final : public Device {
 public:
  // Errors: unavailable (the GPU is lost), io (the driver refused), exhausted.
  static Result<std::unique_ptr<CudaDevice>> open(const CudaDriver& driver, int index,
                                                  const MemoryPins& pins,
                                                  const GpuOptions& options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  CUcontext context() const { return queue_.context; }

  bool has_checksums() const override { return false; }
  std::unique_ptr<CopyRun> make_run(CopyList list, CopyListener& listener) override;
  // Null where the kernel for fingerprints is not loaded, or would hold up the training.
  std::unique_ptr<HashRun> make_hash_run(std::vector<std::span<const std::byte>> sources,
                                         CopyListener& listener) override;
  Status quiesce(Deadline deadline) override;
  Status copy_in(std::byte* target, std::span<const std::byte> source) override;
  Status settle(Deadline deadline) override;

 private:
  enum class Quiesce : std::uint8_t { none, asked, running };

  CudaDevice(const CudaDriver& driver, CUdevice handle, CUcontext context, const MemoryPins& pins,
             const GpuOptions& options);
  Status open_streams(const GpuOptions& options);
  void start_thread();
  void run();
  GatherLimits gather_limits();
  bool skips(const CopyList& list);
  PollPause::Seen seen_at_rest() const;
  Status synchronize() const;
  void carry_out_quiesce(std::unique_lock<std::mutex>& lock);

  const CUdevice handle_;
  const BatchLimits limits_;
  CudaQueue queue_;
  CUstream restore_stream_ = nullptr;
  CUevent restored_ = nullptr;

  // Under the queue's lock.
  Quiesce quiesce_ = Quiesce::none;
  Status quiesced_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
