// Goal:   a Slot's memory is all there before it is used, can be handed to another process, and is
//         refused with numbers where the machine has none.
// Method: allocate on a real executor, look at the bytes and the segments, and map them again.
#include "arena/shared_slot_memory.hpp"

#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstring>

#include "base/spawn.hpp"
#include "base/units.hpp"
#include "os/mapped_segments.hpp"

namespace ckpt::arena {
namespace {

using Allocated = Result<std::unique_ptr<SlotMemory>>;

asio::awaitable<void> allocate_into(SharedMemorySource& source, std::uint64_t bytes,
                                    std::optional<Allocated>& result) {
  auto memory = co_await source.allocate(bytes);
  result.emplace(std::move(memory));
}

Allocated allocate(std::uint64_t bytes, SharedMemoryOptions options = {}) {
  asio::io_context context;
  SharedMemorySource source(std::move(options));
  std::optional<Allocated> result;
  run_detached(context.get_executor(), allocate_into(source, bytes, result));
  context.run();
  REQUIRE(result.has_value());
  return std::move(*result);
}

}  // namespace

TEST_CASE("shared slot memory: whole pages, zero, and writable to the last byte", "[unit][arena]") {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, page_bytes - 1, page_bytes, page_bytes + 1, 5 * MiB}) {
    const auto memory = allocate(bytes);
    REQUIRE(memory);
    const auto all = (*memory)->bytes();
    CHECK(all.size() == align_up(bytes, page_bytes));
    CHECK(all.front() == std::byte{0});
    all.back() = std::byte{7};
    CHECK(all.back() == std::byte{7});
  }
}

TEST_CASE("shared slot memory: every page is there before the Slot is used", "[unit][arena]") {
  const auto memory = allocate(5 * MiB);
  REQUIRE(memory);
  std::uint64_t allocated = 0;
  for (const auto& view : (*memory)->segments()) {
    struct stat status{};
    REQUIRE(::fstat(view.fd, &status) == 0);
    allocated += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  CHECK(allocated >= 5 * MiB);
}

TEST_CASE("shared slot memory: another mapping of its segments sees the same bytes",
          "[unit][arena]") {
  const auto memory = allocate(2 * MiB);
  REQUIRE(memory);
  std::memset((*memory)->bytes().data(), 0x5a, 2 * MiB);
  std::vector<os::Segment> segments;
  for (const auto& view : (*memory)->segments()) {
    auto adopted = os::adopt_segment(os::Fd(::dup(view.fd)), view.bytes);
    REQUIRE(adopted);
    segments.push_back(std::move(*adopted));
  }
  const auto mapped = os::MappedSegments::map(std::move(segments));
  REQUIRE(mapped);
  CHECK(std::memcmp(mapped->bytes().data(), (*memory)->bytes().data(), 2 * MiB) == 0);
  const auto spans = (*memory)->file_spans(page_bytes, 3);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].offset == page_bytes);
  CHECK(spans[0].bytes.data() == (*memory)->bytes().data() + page_bytes);
}

TEST_CASE("shared slot memory: too much for the machine is refused with the numbers",
          "[unit][arena]") {
  CHECK(allocate(0).error().code() == Errc::invalid_argument);
  SharedMemoryOptions options;
  options.available_bytes = [] { return 3 * MiB; };
  CHECK(allocate(3 * MiB, options));
  const auto refused = allocate(4 * MiB, options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::exhausted);
  CHECK(refused.error().text().find("4.0 MiB") != std::string::npos);
  CHECK(refused.error().text().find("3.0 MiB") != std::string::npos);
}

}  // namespace ckpt::arena
