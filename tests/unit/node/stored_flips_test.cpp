// Goal:   one flipped bit in whatever lies on storage never brings wrong bytes, and never lets a
//         trainer believe that there is nothing.
// Method: two steps are saved and flushed by a whole engine. Then, for each byte of each file of
// the
//         directory but the tensor's own, and for some of those, a fresh engine restores from a
//         disk on which that byte has one bit flipped; what it offers is compared with what was
//         captured.
#include <catch2/catch.hpp>
#include <map>

#include "support/captured_log.hpp"
#include "support/sanitized.hpp"
#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

using Files = std::map<std::string, std::string>;

Files saved_files() {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    test::OneRank rank(disk);
    rank.request.save_storage_interval = {1, {}};
    REQUIRE(rank.begin_fresh());
    for (const std::uint64_t step : {3u, 4u}) {
      REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
      rank.capture(Step{step});
      REQUIRE(rank.pass_until([&] { return rank.durable == Step{step}; }));
    }
  }
  Files files;
  for (const std::string& path : disk.tree()) {
    if (path.back() != '/') files[path] = disk.content(path);
  }
  return files;
}

// Under a sanitizer, which is ten times slower, not every byte.
constexpr std::size_t file_stride = test::is_sanitized ? 13 : 1;

struct FileFlipOutcome {
  bool is_wrong = false;
  std::optional<Step> step;
  std::optional<Error> error;
};

FileFlipOutcome restore_from(const Files& files) {
  test::MemoryDisk disk(1);
  for (const auto& [path, content] : files) disk.put(path, content);
  test::OneRank rank(disk);
  FileFlipOutcome outcome;
  const auto restored = rank.restore();
  outcome.is_wrong = rank.is_wrong;
  if (restored) {
    outcome.step = *restored;
  } else {
    outcome.error = restored.error();
  }
  return outcome;
}

}  // namespace

TEST_CASE("stored flips: no byte of a directory can make a restore wrong", "[unit][node]") {
  if (test::is_sanitized) WARN("under a sanitizer only every 13th byte is flipped");
  const test::CapturedLog quiet(LogLevel::error);
  const Files files = saved_files();
  REQUIRE(restore_from(files).step == Step{4});
  std::size_t flips = 0, older = 0, refused = 0;
  for (const auto& [path, content] : files) {
    // The tensor lies in the last 3 KiB, and each byte of it is like every other.
    const bool is_member = path.ends_with(".safetensors");
    const std::size_t tensor = is_member ? content.size() - 3 * KiB : content.size();
    for (std::size_t at = 0; at < content.size(); at += at < tensor ? file_stride : 509) {
      Files flipped = files;
      flipped[path][at] ^= static_cast<char>(1 << (at % 8));
      const FileFlipOutcome outcome = restore_from(flipped);
      INFO(path << " byte " << at << ": "
                << (outcome.error ? outcome.error->message()
                                  : "step " + std::to_string(number(*outcome.step))));
      REQUIRE_FALSE(outcome.is_wrong);
      if (outcome.error) {
        REQUIRE(outcome.error->code() != Errc::not_found);
      } else {
        REQUIRE((outcome.step == Step{4} || outcome.step == Step{3}));
      }
      ++flips;
      older += outcome.step == Step{3};
      refused += outcome.error.has_value();
    }
  }
  // Each kind of answer was met: else this would show little.
  REQUIRE(flips > 1000 / file_stride);
  REQUIRE(older > 100 / file_stride);
  REQUIRE(refused > 10 / file_stride);
}

}  // namespace ckpt::node
