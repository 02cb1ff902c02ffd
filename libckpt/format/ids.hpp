// Ids: what names a run, a step of a timeline, and one rank's bytes of it.
#pragma once

#include <ckpt/tensor.hpp>
#include <compare>
#include <cstdint>

#include "base/checksum.hpp"

namespace ckpt::format {

// RunId: the UUID in the directory's marker, or derived from job and uid if there is no directory.
using RunId = Digest;

// StepId: a step of one timeline. Its order is recovery's preference.
struct StepId {
  std::uint64_t timeline = 0;
  Step step{};
  auto operator<=>(const StepId&) const = default;
};

// ShardId: one rank's bytes of one step, within a run.
struct ShardId {
  StepId at;
  std::uint32_t rank = 0;
  auto operator<=>(const ShardId&) const = default;
};

}  // namespace ckpt::format
