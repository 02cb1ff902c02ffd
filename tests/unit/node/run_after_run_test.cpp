// Goal:   what one run of a job leaves in its directory does not harm the next: attempts that were
//         cut short go, restores that came to an orderly end cast no suspicion on their step, and
//         without the record of what was abandoned nobody guesses.
// Method: engines, one after another, on one disk in memory.
#include <cerrno>

#include "support/captured_log.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

struct RunDirectory {
  RunDirectory() : disk(1) { disk.put_directory("/scratch"); }

  std::vector<std::string> attempts() const {
    std::vector<std::string> found;
    for (const std::string& path : disk.tree()) {
      if (path.starts_with("/scratch/job/.step-") && path.ends_with("/")) found.push_back(path);
    }
    return found;
  }
  void save_two_steps() { test::save_two_steps(disk); }

  // Asks once more, which reads the directory again.
  control::Begun ask(test::OneRank& rank, std::optional<Step> wanted = std::nullopt) const {
    rank.answer.reset();
    REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, wanted}));
    REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
    return *rank.answer;
  }

  test::MemoryDisk disk;
};

const std::string timelines = "/scratch/job/.libckpt/timelines.json";

std::string step_directory(std::uint64_t step) {
  return fmt::format("/scratch/job/step-{:09}", step);
}

}  // namespace

TEST_CASE("run after run: restores that end in order, without a save, are no failures",
          "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  for (int run = 1; run <= 5; ++run) {
    CAPTURE(run);
    test::OneRank rank(directory.disk);
    const auto restored = rank.restore();
    REQUIRE((restored ? "" : restored.error().message()) == "");
    CHECK(*restored == Step{2});  // Not the older one, which nobody suspects.
    close(rank);
  }
}

TEST_CASE("run after run: a trainer that looks at a step in several restores counts once",
          "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  for (int run = 1; run <= 2; ++run) {  // Each dies: with four counted, step 1 would be next.
    test::OneRank rank(directory.disk);
    REQUIRE(rank.restore());
    REQUIRE(directory.ask(rank).restored->step == Step{2});
  }
  test::OneRank rank(directory.disk);
  const auto restored = rank.restore();
  REQUIRE(restored);
  REQUIRE(*restored == Step{2});
}

TEST_CASE("run after run: a restore from storage reports how much is read", "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  directory.disk.set_latency(std::chrono::seconds(1), std::chrono::seconds(1));
  test::OneRank rank(directory.disk);
  REQUIRE(rank.restore());
  REQUIRE(rank.fillings.size() == 2);  // At once, and after the one Chunk that it has.
  const std::uint64_t all = rank.fillings.front().bytes_total;
  CHECK(all > rank.tensor_bytes);
  CHECK(rank.fillings.front().bytes == 0);
  CHECK(rank.fillings.back().bytes == all);
  CHECK(rank.fillings.back().bytes_total == all);
  CHECK(rank.fillings.back().source_name == "storage");
  close(rank);
}

TEST_CASE("run after run: nobody begins anew because storage could not be read", "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  test::OneRank rank(directory.disk);
  REQUIRE(rank.attach());
  directory.disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "list" ? EIO : 0; });
  directory.ask(rank);
  REQUIRE_FALSE(rank.answer->result);
  CHECK(rank.answer->result.error().code() == Errc::unavailable);
  CHECK(rank.answer->result.error().text().find("storage cannot be read") != std::string::npos);
  directory.disk.set_hook({});
  directory.ask(rank);
  REQUIRE(rank.answer->restored);
  CHECK(rank.answer->restored->step == Step{2});
}

TEST_CASE("run after run: without the record of abandoned steps only a named one is restored",
          "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  {
    test::OneRank back(directory.disk);
    REQUIRE(back.attach());
    REQUIRE(directory.ask(back, Step{1}).restored);  // Step 2 is abandoned from here on.
    close(back);
  }
  const std::string damage = GENERATE("gone", "empty", "cut off");
  CAPTURE(damage);
  const std::string whole = directory.disk.content(timelines);
  directory.disk.erase(timelines);
  if (damage == "empty") directory.disk.put(timelines, "");
  if (damage == "cut off") directory.disk.put(timelines, whole.substr(0, whole.size() / 2));
  const auto there = [&] {
    return directory.disk.exists(timelines) ? directory.disk.content(timelines) : "gone";
  };
  const std::string damaged = there();

  test::OneRank rank(directory.disk);
  REQUIRE(rank.attach());
  directory.ask(rank);
  REQUIRE_FALSE(rank.answer->result);
  CHECK(rank.answer->result.error().code() == Errc::corruption);
  CHECK(rank.answer->result.error().text().find("history of the job's timelines is lost") !=
        std::string::npos);
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(there() == damaged);  // Nothing better is known.
  directory.ask(rank, Step{1});
  REQUIRE(rank.answer->restored);
  close(rank);

  test::OneRank next(directory.disk);
  const auto restored = next.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{1});
}

TEST_CASE("run after run: a directory that was removed is made again, and takes steps again",
          "[unit][node]") {
  RunDirectory directory;
  test::OneRank rank(directory.disk);
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  directory.disk.erase("/scratch/job");

  SECTION("while the trainer goes on") {
    rank.capture(Step{2});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  }
  SECTION("and the trainer starts again") {
    REQUIRE(directory.ask(rank).restored);
    CHECK(rank.answer->restored->step == Step{1});  // Of memory.
    CHECK(directory.disk.exists(timelines));
    rank.capture(Step{2});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  }
  CHECK(directory.disk.exists("/scratch/job/.libckpt/run.json"));
  CHECK(directory.disk.exists("/scratch/job/step-000000002/manifest.json"));
}

TEST_CASE("run after run: a record of timelines that found no room is stored later",
          "[unit][node]") {
  RunDirectory directory;
  test::OneRank rank(directory.disk);
  directory.disk.set_hook([](std::string_view verb, const std::string& path) {
    const bool is_record = path.find("timelines.json") != std::string::npos;
    return verb == "rename" && is_record ? ENOSPC : 0;
  });
  REQUIRE(rank.begin_fresh());
  REQUIRE_FALSE(directory.disk.exists(timelines));
  directory.disk.set_hook({});
  REQUIRE(rank.pass_until([&] { return directory.disk.exists(timelines); }));
}

TEST_CASE("run after run: attempts of earlier runs are removed, and nothing else", "[unit][node]") {
  RunDirectory directory;
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

TEST_CASE("run after run: a restore records the steps that it abandons, or is refused",
          "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  {
    test::OneRank back(directory.disk);
    REQUIRE(back.attach());
    directory.disk.set_hook([](std::string_view verb, const std::string& path) {
      const bool is_history = path.find("timelines.json") != std::string::npos;
      return verb != "read_small" && is_history ? EROFS : 0;
    });
    directory.ask(back, Step{1});
    REQUIRE_FALSE(back.answer->result);
    CHECK(back.answer->result.error().code() == Errc::io);
    CHECK(back.answer->result.error().text().find("step 2 on storage would have to be abandoned") !=
          std::string::npos);
    directory.ask(back);  // The newest abandons nothing.
    REQUIRE(back.answer->restored);
    CHECK(back.answer->restored->step == Step{2});
    directory.ask(back, Step{1});
    REQUIRE_FALSE(back.answer->result);
    directory.disk.set_hook({});
    directory.ask(back, Step{1});
    REQUIRE(back.answer->restored);
    CHECK(back.answer->restored->step == Step{1});
    CHECK(back.answer->reason == "the step that was asked for");
  }
  test::OneRank next(directory.disk);
  const auto restored = next.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{1});
}

TEST_CASE("run after run: of an abandoned step that is deleted, the log says so", "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  const test::CapturedLog log;
  test::OneRank rank(directory.disk);
  rank.request.save_storage_interval.steps = 1;
  rank.request.max_ckpt_num = 2;
  REQUIRE(rank.attach());
  directory.ask(rank, Step{1});
  rank.capture(Step{3});
  CHECK(rank.pass_until([&] { return rank.durable == Step{3}; }));
  CHECK(rank.pass_until([&] { return !directory.disk.exists(step_directory(2)); }));
  CHECK(log.has("step=2 deleted step-000000002: abandoned by a restore to an older step"));
}

TEST_CASE("run after run: an attempt that found no room gives back what it took", "[unit][node]") {
  RunDirectory directory;
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

TEST_CASE("run after run: a base that is stored at once is not cleared away with what others left",
          "[unit][node]") {
  RunDirectory directory;
  directory.disk.set_latency(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
  test::OneRank rank(directory.disk);
  REQUIRE(rank.begin_fresh());
  for (std::uint64_t step = 1; step <= 20; ++step) {
    rank.capture(Step{step});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{step}; }));
    rank.granted.clear();  // They are granted anew.
    REQUIRE(directory.ask(rank).restored->step == Step{step});
    REQUIRE(rank.engine->call(rank.session, control::Flush{Step{step}}));
    REQUIRE(rank.pass_until([&] { return directory.disk.exists(step_directory(step)); }));
    CHECK(rank.engine->status_json().find("No such file") == std::string::npos);
    REQUIRE(rank.pass_until([&] { return rank.granted.size() >= 2; }));
  }
}

TEST_CASE("run after run: files being written aside are not taken for leftovers", "[unit][node]") {
  RunDirectory directory;
  directory.save_two_steps();
  std::vector<std::string> removed;
  directory.disk.set_hook([&removed](std::string_view verb, const std::string& path) {
    const bool is_aside = path.find("/timelines.json.") != std::string::npos ||
                          path.find("/.latest.") != std::string::npos;
    if (verb == "remove_file" && is_aside) removed.push_back(path);
    return 0;
  });
  directory.disk.set_latency(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
  for (std::uint64_t step = 2; step <= 40; ++step) {
    test::OneRank rank(directory.disk);
    rank.request.save_storage_interval.steps = 1;
    const auto restored = rank.restore();
    REQUIRE(restored);
    REQUIRE(*restored == Step{step});
    REQUIRE(rank.engine->call(rank.session, control::RestoredOk{Step{step}}));
    REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.capture(Step{step + 1});
    close(rank);
    REQUIRE(removed == std::vector<std::string>{});
  }
}

}  // namespace ckpt::node
