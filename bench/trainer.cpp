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

constexpr std::size_t page_bytes = 4096;

std::uint64_t word_at(std::size_t place) {
  return (place + 1) * 0x9e3779b97f4a7c15u;
}

}  // namespace

Trainer::Trainer(std::size_t bytes, Part part, std::string names)
    : part_(part), names_(std::move(names)), bytes_(bytes / part.of) {
  if (part.of > 1 && (bytes % tensor_bytes != 0 || tensor_bytes % (part.of * page_bytes) != 0))
    give_up("tensors cannot be divided by so many ranks");
  void* memory =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for the tensors");
  memory_ = static_cast<std::byte*>(memory);
}

Trainer::~Trainer() {
  leave();
  ::munmap(memory_, bytes_);
}

std::size_t Trainer::place_of(std::size_t at) const {
  const std::size_t held = tensor_bytes / part_.of;
  return at / held * tensor_bytes + part_.index * held + at % held;
}

void Trainer::fill() {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(place_of(at));
    std::memcpy(memory_ + at, &word, sizeof word);
  }
}

void Trainer::wipe() {
  std::memset(memory_, 0, bytes_);
}

bool Trainer::is_filled() const {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(place_of(at));
    if (std::memcmp(memory_ + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

void Trainer::open(ckpt::Options options) {
  options.open_deadline = patience;  // A slow open is to be measured, not given up.
  checkpointer_.emplace(must(ckpt::FrameworkCheckpointer::open(std::move(options))));
  const std::size_t held = tensor_bytes / part_.of;
  for (std::size_t at = 0; at < bytes_; at += held) {
    ckpt::TensorRef tensor;
    tensor.data = memory_ + at;
    tensor.shape = {static_cast<std::int64_t>(std::min(held, bytes_ - at))};
    if (part_.of > 1) tensor.piece = ckpt::Piece{{tensor_bytes}, {part_.index * held}, {}, {}};
    must(checkpointer_->add(names_ + std::to_string(at / held), tensor));
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

std::optional<ckpt::Restored> Trainer::restore(ckpt::RestoreRequest request) {
  auto restored = checkpointer_->restore(std::move(request));
  if (restored) return *restored;
  if (restored.error().code() == ckpt::Errc::not_found) return std::nullopt;
  give_up(restored.error().message());
}

}  // namespace bench
