// Goal:   what one run of a job leaves in its directory does not harm the next: attempts that were
// cut
//         short go, and restores that came to an orderly end cast no suspicion on their step.
// Method: engines, one after another, on one disk in memory.
#include <cerrno>

#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

constexpr Duration deadline = std::chrono::seconds(60);

struct Directory {
  Directory() : disk(1) { disk.put_directory("/scratch"); }

  std::vector<std::string> attempts() const {
    std::vector<std::string> found;
    for (const std::string& path : disk.tree()) {
      if (path.starts_with("/scratch/job/.step-") && path.ends_with("/")) found.push_back(path);
    }
    return found;
  }
  void close(test::OneRank& rank) {
    REQUIRE(rank.engine->close(rank.session, deadline));
    REQUIRE(rank.pass_until([&] { return rank.end.has_value(); }));
    REQUIRE((*rank.end ? "" : rank.end->error().message()) == "");
  }
  void save_two_steps() {
    test::OneRank rank(disk);
    rank.request.save_storage_interval.steps = 1;
    REQUIRE(rank.begin_fresh());
    for (const std::uint64_t step : {1, 2}) {
      rank.capture(Step{step});
      REQUIRE(rank.pass_until([&] { return rank.durable == Step{step}; }));
    }
    close(rank);
  }

  test::MemoryDisk disk;
};

}  // namespace

TEST_CASE("run after run: restores that end in order, without a save, are no failures",
          "[unit][node]") {
  Directory directory;
  directory.save_two_steps();
  for (int run = 1; run <= 5; ++run) {
    CAPTURE(run);
    test::OneRank rank(directory.disk);
    const auto restored = rank.restore();
    REQUIRE((restored ? "" : restored.error().message()) == "");
    CHECK(*restored == Step{2});  // Not the older one, which nobody suspects.
    directory.close(rank);
  }
}

TEST_CASE("run after run: attempts of earlier runs are removed, and nothing else", "[unit][node]") {
  Directory directory;
  directory.save_two_steps();
  test::MemoryDisk& disk = directory.disk;
  const std::string cut_short = "/scratch/job/.step-000000007.t1.00000000000000aa/";
  const std::string with_notes = "/scratch/job/.step-000000008.t1.00000000000000bb/";
  const std::string of_later = "/scratch/job/.step-000000009.t99.00000000000000cc/";
  disk.put(cut_short + "rank-00000.safetensors", "half");
  disk.put(with_notes + "rank-00000.safetensors", "half");
  disk.put(with_notes + "notes.txt", "precious");
  disk.put(of_later + "rank-00000.safetensors", "half");

  test::OneRank rank(disk);
  REQUIRE(rank.restore());
  REQUIRE(rank.pass_until([&] { return !disk.exists(cut_short + "rank-00000.safetensors"); }));
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(directory.attempts() == std::vector{with_notes, of_later});
  CHECK(disk.content(with_notes + "notes.txt") == "precious");
  CHECK(disk.exists("/scratch/job/step-000000002/manifest.json"));
}

TEST_CASE("run after run: an attempt that found no room gives back what it took", "[unit][node]") {
  Directory directory;
  test::OneRank rank(directory.disk);
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  directory.disk.set_hook([](std::string_view verb, const std::string& path) {
    const bool is_data = path.find("/.step-") != std::string::npos;
    return verb == "write" && is_data ? ENOSPC : 0;
  });
  rank.capture(Step{1});
  REQUIRE(rank.pass_until(
      [&] { return rank.engine->status_json().find("No space") != std::string::npos; }));
  REQUIRE(directory.attempts().size() == 1);
  directory.disk.set_hook({});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  CHECK(directory.attempts().empty());
}

}  // namespace ckpt::node
