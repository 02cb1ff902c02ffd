// HeapMemory: Slots of plain memory, for engines that run in one thread of a test.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "arena/slot_memory.hpp"
#include "base/clock.hpp"
#include "base/random.hpp"

namespace ckpt::test {

class HeapMemory final : public arena::SlotMemory {
 public:
  using Bytes = std::shared_ptr<std::vector<std::byte>>;

  explicit HeapMemory(std::uint64_t bytes)
      : HeapMemory(std::make_shared<Bytes::element_type>(bytes)) {}
  explicit HeapMemory(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::span<std::byte> bytes() override { return *bytes_; }
  std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) override {
    return {os::FileSpan{std::span(*bytes_).subspan(offset, bytes), -1, 0}};
  }
  std::vector<arena::SegmentView> segments() const override { return {}; }

 private:
  Bytes bytes_;
};

class HeapSource final : public arena::MemorySource {
 public:
  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t bytes) override {
    if (clock != nullptr) CKPT_CO_CHECK(co_await sleep_until(*clock, clock->after(time_each)));
    if (allocations_left && (*allocations_left)-- == 0)
      co_return fail(Errc::exhausted, "no memory in this test");
    auto content = std::make_shared<std::vector<std::byte>>(bytes);
    given_.push_back(content);
    std::unique_ptr<arena::SlotMemory> memory = std::make_unique<HeapMemory>(std::move(content));
    co_return memory;
  }
  // Of whatever Slot, in use or not: as memory that fails.
  void flip_a_bit(Random& random) {
    std::erase_if(given_, [](const auto& given) { return given.expired(); });
    if (given_.empty()) return;
    const auto content = given_[random.below(given_.size())].lock();
    (*content)[random.below(content->size())] ^= static_cast<std::byte>(1 << random.below(8));
  }
  // Of every other Slot that has these bytes, from its beginning on. Returns how many there were.
  std::size_t flip_copies_of(std::span<const std::byte> bytes, std::size_t at) {
    std::size_t copies = 0;
    for (const auto& given : given_) {
      const auto content = given.lock();
      if (!content || content->size() < bytes.size() || content->data() == bytes.data()) continue;
      if (!std::equal(bytes.begin(), bytes.end(), content->begin())) continue;
      (*content)[at] ^= std::byte{1};
      ++copies;
    }
    return copies;
  }
  std::optional<std::uint32_t> allocations_left;  // None: all there are.
  Clock* clock = nullptr;                         // With one, each takes time.
  Duration time_each{};

 private:
  std::vector<std::weak_ptr<std::vector<std::byte>>> given_;
};

}  // namespace ckpt::test
