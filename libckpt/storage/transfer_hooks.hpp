// TransferHooks: called during a transfer by the owner of threads and bandwidth. Empty: no call.
#pragma once

#include <cstdint>
#include <functional>

#include "base/compute.hpp"

namespace ckpt::storage {

struct TransferHooks {
  Compute* compute = nullptr;  // Computes the checksums.
  // Called before this many bytes are moved. It may wait, or end the transfer by failing
  // (cancelled).
  std::function<Task<void>(std::uint64_t bytes)> before_transfer;
  // Called after this many were moved and verified, and with 0 after each other long operation.
  std::function<void(std::uint64_t bytes)> verified;
};

}  // namespace ckpt::storage
