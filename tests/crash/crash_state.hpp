// CrashState: a trainer's state of which every byte is a function of (rank, step).
//
// A part of it may be frozen: the same at every step. The ranks of a world also hold one tensor
// together, of which each captures a share. So whoever restores it can say which step it is, and
// that no byte of another one is among it.
#pragma once

#include <ckpt/framework.hpp>
#include <string>
#include <vector>

#include "crash_gpu.hpp"

namespace crash {

class State {
 public:
  // With `gpu` all tensors but the last lie there; it outlives this.
  struct Place {
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;
    std::uint64_t frozen_bytes = 0;
  };
  explicit State(Place place, const Gpu* gpu = nullptr);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ckpt::Status register_with(ckpt::Checkpointer& checkpointer);

  // Trains a step. On a GPU it is only queued. False: the GPU is lost.
  bool compute(std::uint64_t step);
  // The blob whose size varies is handed over anew before each save.
  ckpt::Status hand_over(ckpt::FrameworkCheckpointer& checkpointer, std::uint64_t step) const;

  // The difference from the state of `step`, or nothing.
  std::string difference(const ckpt::FrameworkCheckpointer& checkpointer, std::uint64_t step) const;

 private:
  bool is_on_gpu(std::size_t index) const { return places_[index] != nullptr; }

  std::uint64_t key_of(std::size_t tensor, std::uint64_t step) const;
  bool is_shared(std::size_t tensor) const;

  Place place_;
  const Gpu* gpu_;
  std::vector<std::vector<std::uint64_t>> tensors_;
  std::vector<void*> places_;  // On the GPU; null: the tensor itself.
  std::vector<std::uint64_t> frozen_;
  std::vector<std::uint64_t> position_;  // A blob of constant size.
};

}  // namespace crash
