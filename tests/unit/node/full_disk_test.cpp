// Goal:   a full disk gets room by the job's own rule, though no newer step can be stored before: a
//         lowered `max_ckpt_num` helps by itself.
// Method: a run stores some steps; the next one, with a lower number, finds no room on the disk.
#include <cerrno>

#include "storage/retention.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

std::vector<std::uint64_t> steps_on(const test::MemoryDisk& disk) {
  std::vector<std::uint64_t> steps;
  for (const std::string& path : disk.tree()) {
    const std::string prefix = "/scratch/job/step-";
    if (path.starts_with(prefix) && path.ends_with("/manifest.json"))
      steps.push_back(std::stoull(path.substr(prefix.size(), 9)));
  }
  return steps;
}

// Nine steps, and room for nothing more.
void fill(test::MemoryDisk& disk) {
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  for (std::uint64_t step = 1; step <= 9; ++step) {
    rank.capture(Step{step});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{step}; }));
  }
  test::close(rank);
  disk.set_capacity(disk.used_bytes() + 3 * page_bytes);  // For small files.
}

}  // namespace

TEST_CASE("full disk: a lowered number of checkpoints makes room", "[unit][node]") {
  test::MemoryDisk disk(1);
  fill(disk);
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  rank.request.max_ckpt_num = 3;
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  REQUIRE(*restored == Step{9});
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{10});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{10}; }));
  CHECK(steps_on(disk) == std::vector<std::uint64_t>{8, 9, 10});
}

TEST_CASE("full disk: a job starts on it, and its own rule makes room", "[unit][node]") {
  test::MemoryDisk disk(1);
  fill(disk);
  disk.set_capacity(disk.used_bytes());  // Not even for a small file.
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  rank.request.max_ckpt_num = GENERATE(1U, 3U, 0U);
  const bool has_rule = rank.request.max_ckpt_num > 0;
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  REQUIRE(*restored == Step{9});
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{10});
  if (!has_rule) {
    REQUIRE(rank.pass_until([&] { return !rank.notice.degraded.empty(); }));
    CHECK_THAT(rank.notice.degraded, Catch::Contains("No space left on device"));
    CHECK(steps_on(disk).size() == 9);  // All are kept.
    return;
  }
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{10}; }));
  CHECK(steps_on(disk).back() == 10);
  CHECK(steps_on(disk).size() == rank.request.max_ckpt_num);
  const bool is_left = std::ranges::any_of(disk.tree(), [](const std::string& path) {
    return path.find("/run.json.") != std::string::npos;
  });
  CHECK_FALSE(is_left);
  test::close(rank);
  test::OneRank next(disk);
  REQUIRE(next.restore().value() == Step{10});
}

TEST_CASE("full disk: who has room for as many as are kept hears that one more is needed",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  fill(disk);
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  std::string told;
  SECTION("a number is given") {
    rank.request.max_ckpt_num = 9;
    told = "max_ckpt_num=9 keeps 9 until a newer one is durable: this needs room for 10";
  }
  SECTION("all are kept") {
    told = "no max_ckpt_num limits how many are kept";
  }
  told += "; `ckpt gc /scratch/job --keep N` makes room at once";
  REQUIRE(rank.restore());
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{10});
  REQUIRE(rank.pass_until([&] { return !rank.notice.degraded.empty(); }));
  CHECK_THAT(rank.notice.degraded, Catch::Contains("No space left on device"));
  CHECK(rank.notice.degraded.ends_with(told));
  CHECK(steps_on(disk).size() == 9);
}

TEST_CASE("full disk: in a framework's own folder the job's number is nobody's knob",
          "[unit][node]") {
  const Error full(Errc::exhausted, "allocate",
                   std::make_error_code(std::errc::no_space_on_device));
  storage::RetentionRule rule{2, {}, {}};
  const auto told = [&](std::string_view directory) {
    return storage::with_room(full, rule, directory).text();
  };
  CHECK_THAT(told("/run"), Catch::Contains("max_ckpt_num=2 keeps 2"));
  CHECK_THAT(told("/run/.libckpt-of-ours/job"), Catch::Contains("max_ckpt_num"));
  const std::string of_door = told("/output/.libckpt/job");
  CHECK_THAT(of_door, !Catch::Contains("max_ckpt_num") && Catch::Contains("No space left"));
  CHECK(of_door.ends_with("older ones go only when this one is there: it needs room beside them"));
  rule.max_ckpt_num = 0;
  CHECK_THAT(told("/output/.libckpt/job"), !Catch::Contains("ckpt gc"));
}

TEST_CASE("full disk: it is said of a small file, and of a user's share, too", "[unit][node]") {
  test::MemoryDisk disk(1);
  fill(disk);
  disk.set_capacity(std::nullopt);
  const int error = GENERATE(ENOSPC, EDQUOT);
  const std::string file = GENERATE("/manifest.json", ".safetensors");
  CAPTURE(error, file);
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_it = path.find("/.step-") != std::string::npos && path.ends_with(file);
    return is_it && verb == "write" ? error : 0;
  });
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  rank.request.max_ckpt_num = 9;
  REQUIRE(rank.restore());
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{10});
  REQUIRE(rank.pass_until([&] { return !rank.notice.degraded.empty(); }));
  CHECK_THAT(rank.notice.degraded, Catch::Contains(error == ENOSPC ? "No space" : "quota"));
  CHECK_THAT(rank.notice.degraded, Catch::Contains("this needs room for 10"));
}

}  // namespace ckpt::node
