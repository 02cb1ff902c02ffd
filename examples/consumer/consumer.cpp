// A consumer of the installed library: opens, adds, saves, waits, closes; no daemon, no storage.
#include <ckpt/ckpt.hpp>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

template <class Value>
Value need(ckpt::Result<Value> result, const char* doing) {
  if (!result) {
    std::fprintf(stderr, "%s: %s\n", doing, result.error().message().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<Value>) return std::move(result).value();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<float> weights(100'000, 0.5f);
  ckpt::Options options;
  options.job = "consumer";
  options.embedded = true;
  options.memory_budget = 256u << 20;
  if (argc > 1) options.runtime_dir = argv[1];

  auto checkpointer = need(ckpt::Checkpointer::open(options), "open");
  const auto tensor = ckpt::tensor(weights.data(), ckpt::DType::f32, {100, 1000});
  need(checkpointer.add("weights", tensor), "add");
  if (ckpt::dtype_from_safetensors("F32") != ckpt::DType::f32) return 1;
  const auto outcome = need(checkpointer.save(ckpt::Step{1}), "save");
  if (outcome != ckpt::SaveOutcome::started) return 1;
  need(checkpointer.guard(), "guard");
  need(checkpointer.wait(ckpt::Step{1}, ckpt::Level::captured, std::chrono::seconds(30)), "wait");
  const auto bytes = static_cast<unsigned long long>(checkpointer.stats().bytes_captured);
  need(checkpointer.close(), "close");
  std::printf("consumer: libckpt %s captured %llu bytes\n", CKPT_VERSION_STRING, bytes);
  return bytes >= 400'000 ? 0 : 1;
}
