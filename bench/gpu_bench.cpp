// Captures and restores of tensors on a GPU against the rate of its link, the raw peaks first.
//
// Without a GPU it reports that and measures nothing. --only PART,... runs some of the parts.
#include "bench/gpu_parts.hpp"

namespace {

using Part = void (*)(bench::Harness&, ckpt::test::GpuTrainer&);

constexpr std::pair<const char*, Part> parts[] = {
    {"memory", bench::measure_memory},
    {"copies", bench::measure_copies},
    {"calls", bench::measure_calls},
    {"saves", bench::measure_saves},
    {"gaps", bench::measure_gaps},
    {"steps", bench::measure_steps},
    {"overlap", bench::measure_overlap},
    {"restore", bench::measure_restore},
    {"training", bench::measure_training},
    {"fingerprint", bench::measure_fingerprint},
    {"unchanged", bench::measure_unchanged},
    {"nccl", bench::measure_nccl},
    {"collectives", bench::measure_collectives},
};

}  // namespace

int main(int argc, char** argv) {
  auto opened = ckpt::test::GpuTrainer::open();
  if (!opened) {
    fmt::print("gpu: {} parts skipped: {}\n", std::size(parts), opened.error().message());
    return 0;
  }
  bench::Harness harness("gpu", argc, argv);
  harness.add_condition(opened.value()->name());
  for (const auto& [name, measure] : parts)
    if (harness.wants(name)) measure(harness, **opened);
  return harness.finish();
}
