#include "arena/shared_slot_memory.hpp"

#include <fmt/format.h>

#include "arena/arena_limits.hpp"
#include "base/kill_point.hpp"
#include "base/units.hpp"
#include "os/mapped_segments.hpp"

namespace ckpt::arena {

namespace {

class SharedSlotMemory final : public SlotMemory {
 public:
  explicit SharedSlotMemory(os::MappedSegments mapped) : mapped_(std::move(mapped)) {}

  std::span<std::byte> bytes() override { return mapped_.bytes(); }
  std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) override {
    return mapped_.file_spans(offset, bytes);
  }
  std::vector<SegmentView> segments() const override {
    std::vector<SegmentView> views;
    for (const auto& segment : mapped_.segments())
      views.push_back({segment.fd.number(), segment.bytes});
    return views;
  }

 private:
  os::MappedSegments mapped_;
};

Result<std::unique_ptr<SlotMemory>> make_memory(std::uint64_t bytes, int threads) {
  CKPT_POINT("reg.before");
  os::SegmentOptions options;
  options.name = "ckpt-slot";
  options.bytes = align_up(bytes, page_bytes);
  CKPT_TRY(auto segments, os::create_segments(options));
  CKPT_TRY(auto mapped, os::MappedSegments::map(std::move(segments)));
  CKPT_CHECK(mapped.prefault(threads));
  CKPT_POINT("reg.after");
  return std::unique_ptr<SlotMemory>(std::make_unique<SharedSlotMemory>(std::move(mapped)));
}

}  // namespace

SharedMemorySource::SharedMemorySource(SharedMemoryOptions options)
    : options_(std::move(options)), threads_(1, os::DiskPriority::normal) {}

Task<std::unique_ptr<SlotMemory>> SharedMemorySource::allocate(std::uint64_t bytes) {
  const std::string what = fmt::format("allocate a Slot of {}", human_bytes(bytes));
  if (bytes == 0) co_return fail(Errc::invalid_argument, what);
  if (options_.available_bytes) {
    const std::uint64_t available = options_.available_bytes();
    if (available < bytes) {
      co_return fail(Errc::exhausted,
                     fmt::format("{}: the machine has {} left", what, human_bytes(available)));
    }
  }
  std::function<Result<std::unique_ptr<SlotMemory>>()> work =
      [bytes, threads = options_.prefault_threads] { return make_memory(bytes, threads); };
  auto memory = co_await threads_.run<std::unique_ptr<SlotMemory>>(std::move(work));
  if (!memory) co_return fail(std::move(memory).error().context(what));
  co_return std::move(*memory);
}

}  // namespace ckpt::arena
