// CrashState: a trainer's state of which every byte is a function of (rank, step).
//
// So whoever restores it can say which step it is, and that no byte of another one is among it.
#pragma once

#include <ckpt/checkpointer.hpp>
#include <string>
#include <vector>

namespace crash {

class State {
 public:
  explicit State(std::uint32_t rank);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ckpt::Status register_with(ckpt::Checkpointer& checkpointer);

  void compute(std::uint64_t step);  // What training does.
  // The blob whose size varies is handed over anew before each save.
  ckpt::Status hand_over(ckpt::Checkpointer& checkpointer, std::uint64_t step) const;

  // What differs from the state of `step`, or nothing.
  std::string difference(const ckpt::Checkpointer& checkpointer, std::uint64_t step) const;

 private:
  std::uint32_t rank_;
  std::vector<std::vector<std::uint64_t>> tensors_;
  std::vector<std::uint64_t> position_;  // A blob of constant size.
};

}  // namespace crash
