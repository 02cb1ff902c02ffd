// Shard: one sealed Slot in real shared memory with its record, for storing, sending and loading.
#pragma once

#include <memory>
#include <vector>

#include "arena/shared_slot_memory.hpp"
#include "bench/loop.hpp"
#include "format/shard_record.hpp"

namespace bench {

struct Shard {
  // `bytes` of tensors of 16 MiB each. No two pages have the same bytes, and all memory is touched.
  Shard(Loop& loop, std::size_t bytes);

  std::span<std::byte> slot() { return memory->bytes().first(record->bytes); }
  std::vector<ckpt::os::FileSpan> spans() { return memory->file_spans(0, record->bytes); }
  // Turns it into another step with the same bytes, so that it is stored or sent again.
  void become_step(std::uint64_t step);

  ckpt::arena::SharedMemorySource source;
  std::unique_ptr<ckpt::arena::SlotMemory> memory;
  std::shared_ptr<const ckpt::format::ShardRecord> record;
};

}  // namespace bench
