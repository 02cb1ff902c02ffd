// NcclTeam: ranks that are threads of this process, each with memory on its own GPU of the stand-in
// driver, and the stand-in for NCCL set anew.
//
// Threads: one; `on_each` starts one for each rank, and waits for them. Lifetime: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/nccl_group.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/nccl_stand_in/control.hpp"

namespace ckpt::test {

// The library itself, and CKPT_NCCL_LIBRARY set so that libckpt finds it, too.
const NcclControl& nccl_stand_in();

inline constexpr std::chrono::milliseconds long_enough{60'000};  // Only a hang reaches it.

struct NcclTeamOptions {
  int ranks = 2;
  std::string nccl;    // Words for the stand-in for NCCL.
  std::string driver;  // For the driver.
  // The parts that each rank has; the bytes differ from rank to rank.
  std::vector<std::size_t> parts = {1, 300, 70'000};
  std::chrono::milliseconds abort_patience = long_enough;
};

class NcclTeam {
 public:
  explicit NcclTeam(const NcclTeamOptions& options);

  // Each rank's result, from a thread of its own.
  std::vector<Status> on_each(const std::function<Status(int rank)>& work) const;
  Status open(int rank, device::Deadline deadline);
  Status broadcast(int rank, int root, device::Deadline deadline);
  Status close(int rank, device::Deadline deadline);
  // Opened, sent from the root, closed; no error is expected.
  std::vector<Status> hand_round(int root);

  device::NcclGroup* group(int rank) { return groups_[static_cast<std::size_t>(rank)].get(); }
  void drop(int rank) { groups_[static_cast<std::size_t>(rank)].reset(); }
  const std::vector<GpuPart>& parts(int rank) const {
    return parts_[static_cast<std::size_t>(rank)];
  }
  // True if each rank has the bytes that the root had at first.
  bool all_have(int root);
  const device::NcclLibrary& library() const { return *library_; }
  StandInTrainer& trainer() { return *trainer_; }
  // How often the trainer has retained those of its GPUs.
  std::uint64_t contexts() const { return contexts_; }
  // The complaints of either stand-in.
  static std::string violations();

 private:
  std::vector<std::byte> content_of(int rank, std::size_t part) const;

  const NcclTeamOptions options_;
  std::unique_ptr<StandInTrainer> trainer_;
  std::unique_ptr<device::NcclLibrary> library_;
  device::NcclUniqueId id_{};
  std::uint64_t contexts_ = 0;
  std::vector<std::vector<GpuPart>> parts_;  // By rank.
  std::vector<std::unique_ptr<device::NcclGroup>> groups_;
};

// So long that only a hang reaches it; and one that has passed.
inline device::Deadline in_a_minute() {
  return std::chrono::steady_clock::now() + std::chrono::minutes(1);
}
inline device::Deadline passed() {
  return std::chrono::steady_clock::now() - std::chrono::seconds(1);
}

}  // namespace ckpt::test
