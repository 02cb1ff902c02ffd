// G14: NCCL's all-gather of two GPUs, while a capture copies from one of them and alone.
//
// Both ranks are in this process, on streams of their own. One GPU with a capture suffices: all
// wait for the slowest.
#include <array>

#include "bench/gpu_parts.hpp"
#include "device/nccl_library.hpp"
#include "os/dynamic_library.hpp"

namespace bench {

using ckpt::device::CudaScope;
using ckpt::device::NcclComm;
using ckpt::device::NcclLibrary;
using ckpt::device::NcclResult;
using ckpt::device::NcclType;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

namespace {

constexpr int gpus_needed = 2;
constexpr std::chrono::seconds patience{60};
// A capture of 1 GiB takes about 20 ms, and an all-gather of an eighth of that from each rank one.
constexpr int gathers_max = 40;
constexpr std::size_t parts_of_state = 8;

// libckpt itself does not call it.
using AllGather = NcclResult(const void* source, void* target, std::size_t count, NcclType type,
                             NcclComm comm, CUstream_st* stream);

class TwoRanks {
 public:
  TwoRanks(GpuTrainer& trainer, const NcclLibrary& library, AllGather* all_gather,
           std::size_t rank_bytes)
      : driver_(trainer.driver()),
        library_(library),
        all_gather_(all_gather),
        rank_bytes_(rank_bytes) {
    ckpt::device::NcclUniqueId id;
    nccl(library_.make_id(&id), "make the id");
    for (int rank = 0; rank < gpus_needed; ++rank) open(rank, id);
    wait_ready();
  }
  ~TwoRanks() {
    for (Rank& rank : ranks_) nccl(library_.finalize(rank.comm), "finalize");
    wait_ready();
    for (int index = 0; index < gpus_needed; ++index) close(index);
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  double bytes_each() const { return static_cast<double>(gpus_needed * rank_bytes_); }
  void gather() {
    nccl(library_.begin_group(), "begin a group");
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      const Rank& rank = ranks_[index];
      const CudaScope scope(driver_, rank.context);
      std::byte* const whole = rank.memory;
      nccl(all_gather_(whole + index * rank_bytes_, whole, rank_bytes_, ckpt::device::nccl_uint8,
                       rank.comm, rank.stream),
           "all-gather");
    }
    nccl(library_.end_group(), "end a group");
    wait_ready();
    for (const Rank& rank : ranks_) {
      const CudaScope scope(driver_, rank.context);
      const auto deadline = steady_clock::now() + patience;
      CUresult result = CUDA_ERROR_NOT_READY;
      while (result == CUDA_ERROR_NOT_READY && steady_clock::now() < deadline)
        result = driver_.query_stream(rank.stream);
      check(result);
    }
  }

 private:
  struct Rank {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    std::byte* memory = nullptr;
    NcclComm comm = nullptr;
  };

  void nccl(NcclResult result, const char* attempted) const {
    must(library_.check(result, attempted));
  }
  void open(int index, const ckpt::device::NcclUniqueId& id) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    CUdevice gpu = 0;
    check(driver_.get_device(&gpu, index));
    check(driver_.retain_context(&rank.context, gpu));
    const CudaScope scope(driver_, rank.context);
    check(driver_.create_stream(&rank.stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr address = 0;
    check(driver_.allocate(&address, gpus_needed * rank_bytes_));
    rank.memory = reinterpret_cast<std::byte*>(address);
    ckpt::device::NcclConfig config;
    nccl(library_.join(&rank.comm, gpus_needed, id, index, &config), "join");
  }
  void close(int index) {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const CudaScope scope(driver_, rank.context);
    nccl(library_.destroy(rank.comm), "destroy");
    check(driver_.free(on_gpu(rank.memory)));
    check(driver_.destroy_stream(rank.stream));
    check(driver_.release_context(index));
  }
  // Until the newest call has been carried out on all ranks.
  void wait_ready() const {
    const auto deadline = steady_clock::now() + patience;
    for (const Rank& rank : ranks_) {
      const CudaScope scope(driver_, rank.context);
      NcclResult state = ckpt::device::nccl_in_progress;
      while (state == ckpt::device::nccl_in_progress) {
        nccl(library_.state(rank.comm, &state), "ask for the state");
        if (steady_clock::now() > deadline) give_up("NCCL does not get on");
      }
      nccl(state, "wait for the ranks");
    }
  }

  const ckpt::device::CudaDriver& driver_;
  const NcclLibrary& library_;
  AllGather* const all_gather_;
  const std::size_t rank_bytes_;
  std::array<Rank, gpus_needed> ranks_;
};

double gather_rate(TwoRanks& ranks, const std::function<bool()>& goes_on) {
  int count = 0;
  const double rounds = rate(1, [&] {
    do {
      ranks.gather();
      ++count;
    } while (count < gathers_max && goes_on());
  });
  return rounds * count * ranks.bytes_each();
}

}  // namespace

void measure_collectives(Harness& harness, GpuTrainer& trainer) {
  if (trainer.driver().device_count < gpus_needed) {
    fmt::print("G14 skipped: it needs two GPUs\n");
    return;
  }
  const auto library = NcclLibrary::open({});
  if (!library) {
    fmt::print("G14 skipped: {}\n", library.error().text());
    return;
  }
  const auto handle = must(ckpt::os::DynamicLibrary::open({(*library)->name}));
  AllGather* const all_gather = must(handle.symbol<AllGather>("ncclAllGather"));
  GpuState state(trainer, sizes_like_a_model(harness.bytes()));
  TwoRanks ranks(trainer, **library, all_gather,
                 std::max<std::size_t>(harness.bytes() / parts_of_state, ckpt::MiB));
  harness.add_condition(fmt::format("NCCL {}", (*library)->version_text()));
  int rounds = 1;  // As many alone as in the capture before.
  const auto beside = [&] {
    state.begin();
    rounds = 0;
    const double found = gather_rate(ranks, [&] {
      ++rounds;
      return state.snapshotter->is_running();
    });
    state.end();
    return found;
  };
  const auto alone = [&] {
    int left = rounds;
    return gather_rate(ranks, [&] { return --left > 0; });
  };
  harness.compare({"G14", "all-gather of two GPUs, a capture on one / alone", 0.97, 0.92}, beside,
                  alone);
}

}  // namespace bench
