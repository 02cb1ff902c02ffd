// Restorer: copies a verified shard from its Slot into the trainer's tensors.
//
// Each Chunk is verified as a whole, then copied out, on several threads. No byte of a Chunk that
// fails reaches a tensor.
//
// Threads:   the training thread, helped by the CopyThreads.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/copy_threads.hpp"
#include "device/device.hpp"
#include "format/shard_record.hpp"

namespace ckpt::snapshot {

// Target: a registered tensor that a restore fills. Borrowed for the call.
struct Target {
  std::string_view name;
  DType dtype = DType::u8;
  std::span<const std::int64_t> shape;
  std::byte* data = nullptr;
  std::size_t device = 0;        // Index of its Device; 0 is the host.
  const Piece* piece = nullptr;  // Null: the whole tensor, row-major.
};

struct RestorePiece {
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
  std::byte* target = nullptr;
  std::size_t device = 0;
  std::size_t tensor = 0;  // Index into the record's layout.
};

// Memory that two tensors share here, and that was stored for each of them: the bytes must be
// equal.
struct SharedBytes {
  std::size_t tensor = 0;  // Indexes into the record's layout.
  std::size_t other = 0;
  std::uint64_t slot_offset = 0;
  std::uint64_t other_slot_offset = 0;
  std::uint64_t bytes = 0;
};

struct RestorePlan {
  std::vector<RestorePiece> pieces;      // Cut at the Chunks, sorted by offset.
  std::vector<std::size_t> first_piece;  // One for each Chunk, and one for the end.
  std::vector<SharedBytes> shared;
};

// The targets have the record's types and shapes, and cover all its tensors or some of them.
enum class Wanted : std::uint8_t { all_tensors, some_tensors };
// Errors: invalid_argument (names the tensor, and both types and shapes), corruption (the record
// contradicts itself).
Result<RestorePlan> plan_restore(const format::ShardRecord& record, std::span<const Target> targets,
                                 Wanted wanted = Wanted::all_tensors);

// How many CopyThreads suit a restore: nothing trains meanwhile, and one core checks a third of
// what a link of PCIe 5 takes at most. So as many as this process has cores, within bounds, and no
// fewer than it has for captures.
std::uint32_t restore_threads(std::uint32_t copy_threads);

struct RestoreMeans {
  std::span<device::Device* const> devices;  // Indexed by Target::device.
  device::CopyThreads& threads;
  device::Deadline deadline;
  std::function<void()> before_overwriting;  // Called once nothing is left to refuse.
  // Called on the calling thread, now and then, with the bytes copied since the last call.
  std::function<void(std::uint64_t bytes)> copied;
};
// Errors: invalid_argument (names two tensors that share memory here and differ there; nothing was
// written), corruption (names step, Chunk and tensor), unavailable (the deadline passed), those of
// the devices. After these, tensors may be partly overwritten.
Status restore_tensors(const format::ShardRecord& record, std::span<const std::byte> slot,
                       const RestorePlan& plan, const RestoreMeans& means);

// "F32 [4, 8]": for messages.
std::string describe(DType dtype, std::span<const std::int64_t> shape);

}  // namespace ckpt::snapshot
