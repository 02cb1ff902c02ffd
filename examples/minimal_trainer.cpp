// A minimal trainer: the whole integration of libckpt, in the order of a training loop.
#include <ckpt/ckpt.hpp>
#include <cstdio>
#include <vector>

int main() {
  std::vector<float> weights(1 << 20, 1.0f);  // Stands for a model.
  std::uint64_t step = 0;

  ckpt::Options options;
  options.job = "minimal";
  auto checkpointer = ckpt::Checkpointer::open(options);  // Starts a daemon if none runs.
  if (!checkpointer) {
    std::fprintf(stderr, "%s\n", checkpointer.error().message().c_str());
    return 2;
  }
  auto tensor =
      ckpt::tensor(weights.data(), ckpt::DType::f32, {static_cast<std::int64_t>(weights.size())});
  tensor.guarded = true;  // It only changes between guard() and the next save.
  (void)checkpointer->add("weights", tensor);
  (void)checkpointer->add_blob("step", std::as_writable_bytes(std::span(&step, 1)));

  const auto restored = checkpointer->restore();
  if (restored) {
    std::printf("goes on after step %llu, from %s\n",
                static_cast<unsigned long long>(ckpt::number(restored->step)),
                restored->source_name.c_str());
  } else if (restored.error().code() != ckpt::Errc::not_found) {
    // There are checkpoints, and training from the beginning would replace them.
    std::fprintf(stderr, "%s\n", restored.error().message().c_str());
    return 2;
  }
  while (step < 100) {
    (void)checkpointer->guard();  // The running capture has left the weights.
    for (float& weight : weights) weight *= 0.999f;
    ++step;
    const auto saved = checkpointer->save_checkpoint_if_needed(ckpt::Step{step});
    if (!saved) std::fprintf(stderr, "%s\n", saved.error().message().c_str());  // Train on.
  }
  const auto closed = checkpointer->close();
  if (!closed) std::fprintf(stderr, "%s\n", closed.error().message().c_str());
  return 0;
}
