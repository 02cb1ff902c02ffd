// HeapMemory: Slots of plain memory, for engines that run in one thread of a test.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arena/slot_memory.hpp"

namespace ckpt::test {

class HeapMemory final : public arena::SlotMemory {
 public:
  explicit HeapMemory(std::uint64_t bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() override { return bytes_; }
  std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) override {
    return {os::FileSpan{std::span(bytes_).subspan(offset, bytes), -1, 0}};
  }
  std::vector<arena::SegmentView> segments() const override { return {}; }

 private:
  std::vector<std::byte> bytes_;
};

class HeapSource final : public arena::MemorySource {
 public:
  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t bytes) override {
    if (allocations_left && (*allocations_left)-- == 0)
      co_return fail(Errc::exhausted, "no memory in this test");
    std::unique_ptr<arena::SlotMemory> memory = std::make_unique<HeapMemory>(bytes);
    co_return memory;
  }
  std::optional<std::uint32_t> allocations_left;  // None: all there are.
};

}  // namespace ckpt::test
