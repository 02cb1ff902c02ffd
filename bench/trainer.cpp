#include "bench/trainer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "bench/must.hpp"

namespace bench {

namespace {

constexpr std::size_t tensor_bytes = 16 << 20;
constexpr std::chrono::minutes patience(2);
constexpr std::chrono::milliseconds pause(10);

std::uint64_t word_at(std::size_t at) {
  return (at + 1) * 0x9e3779b97f4a7c15u;
}

}  // namespace

Trainer::Trainer(std::size_t bytes) : bytes_(bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for the tensors");
  memory_ = static_cast<std::byte*>(memory);
}

Trainer::~Trainer() {
  leave();
  ::munmap(memory_, bytes_);
}

void Trainer::fill() {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(at);
    std::memcpy(memory_ + at, &word, sizeof word);
  }
}

void Trainer::wipe() {
  std::memset(memory_, 0, bytes_);
}

bool Trainer::is_filled() const {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(at);
    if (std::memcmp(memory_ + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

void Trainer::open(ckpt::Options options) {
  options.open_deadline = patience;  // A slow open is to be measured, not given up.
  checkpointer_.emplace(must(ckpt::Checkpointer::open(std::move(options))));
  for (std::size_t at = 0; at < bytes_; at += tensor_bytes) {
    ckpt::TensorRef tensor;
    tensor.data = memory_ + at;
    tensor.shape = {static_cast<std::int64_t>(std::min(tensor_bytes, bytes_ - at))};
    must(checkpointer_->add("tensor." + std::to_string(at / tensor_bytes), tensor));
  }
}

void Trainer::save(ckpt::Level level) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (must(checkpointer_->save(ckpt::Step{++step_})) != ckpt::SaveOutcome::started) {
    if (std::chrono::steady_clock::now() > until) give_up("every save is skipped");
    std::this_thread::sleep_for(pause);
  }
  must(checkpointer_->guard());
  must(checkpointer_->wait(ckpt::Step{step_}, level, patience));
}

std::optional<ckpt::Restored> Trainer::restore() {
  auto restored = checkpointer_->restore();
  if (restored) return *restored;
  if (restored.error().code() == ckpt::Errc::not_found) return std::nullopt;
  give_up(restored.error().message());
}

}  // namespace bench
