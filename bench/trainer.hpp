// Trainer: one rank of a job with host tensors, over the public interface only.
#pragma once

#include <ckpt/framework.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace bench {

// Part: what a rank holds of each tensor: one of `of` equal parts, each of whole pages.
struct Part {
  std::uint32_t index = 0;
  std::uint32_t of = 1;
};

class Trainer {
 public:
  // Its tensors are untouched memory, 16 MiB each, as many as `bytes` need; or a part of each, and
  // then `bytes` is a multiple of 16 MiB.
  explicit Trainer(std::size_t bytes, Part part = {}, std::string names = "tensor.");
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void fill();  // Bytes that depend on their place.
  void wipe();  // So that what a restore does not write is not there by chance.
  bool is_filled() const;
  // Opens the job and registers the tensors. Ends the bench on errors, like every call here.
  void open(ckpt::Options options);
  void leave() { checkpointer_.reset(); }  // As a death: the daemon keeps what it holds.
  ckpt::FrameworkCheckpointer& checkpointer() { return *checkpointer_; }
  std::size_t bytes() const { return bytes_; }  // That it holds.

  // Saves the next step, and waits until it has reached the level. If a step finds no free Slot,
  // because the last one is still being written, the next step follows.
  void save(ckpt::Level level);
  // None: nothing to restore.
  std::optional<ckpt::Restored> restore(ckpt::RestoreRequest request = {});

 private:
  std::size_t place_of(std::size_t at) const;  // In the whole state.

  std::byte* memory_ = nullptr;
  Part part_;
  std::string names_;  // Each with a number behind it.
  std::size_t bytes_ = 0;
  std::uint64_t step_ = 0;
  std::optional<ckpt::FrameworkCheckpointer> checkpointer_;
};

}  // namespace bench
