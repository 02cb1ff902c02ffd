// Goal:   what a save did not copy is counted and shown, and a capture that we gave up ourselves is
//         no error of the training.
// Method: ends of captures as the engine of a GPU reports them, and the lines in the log.
#include "client/save_account.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "base/log.hpp"

namespace ckpt::client {

namespace {

// Lines: what is logged while it lives.
class Lines {
 public:
  Lines() {
    errors.clear();
    others.clear();
    Log::set_level(LogLevel::info);
    Log::set_sink([](LogLevel level, std::string_view line) {
      (level == LogLevel::error ? errors : others).append(line).append("\n");
    });
  }
  ~Lines() {
    Log::set_sink(nullptr);
    Log::set_level(LogLevel::error);  // As the other tests of this program.
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  static inline std::string errors;
  static inline std::string others;
};

snapshot::Captured ended(Step step, Status status) {
  snapshot::Captured captured;
  captured.step = step;
  captured.status = std::move(status);
  captured.bytes = 3 << 20;
  return captured;
}

}  // namespace

TEST_CASE("save account: bytes that were not copied are counted, and in the save's line",
          "[unit][client]") {
  const Lines lines;
  SaveAccount account("gpt", "job gpt");
  for (std::uint64_t step = 1; step <= 3; ++step) {
    account.started(Step{step});
    snapshot::Captured captured = ended(Step{step}, {});
    captured.bytes_unchanged = step == 1 ? 0 : 2 << 20;
    account.ended(captured);
    REQUIRE_FALSE(account.collect());
    account.report({});
    const bool is_shown = Lines::others.find("3.0 MiB (2.0 MiB unchanged), ") != std::string::npos;
    REQUIRE(is_shown == (step > 1));
    const std::string begin = "job=gpt step " + std::to_string(step) + " captured in ";
    REQUIRE(Lines::others.find(begin) != std::string::npos);
  }
  REQUIRE(account.stats({}).bytes_captured == 9 << 20);
  REQUIRE(account.stats({}).bytes_unchanged == 4 << 20);
}

TEST_CASE("save account: a capture that was given up is a warning, and any other failure an error",
          "[unit][client]") {
  for (const Errc code : {Errc::cancelled, Errc::corruption, Errc::unavailable}) {
    const Lines lines;
    SaveAccount account("gpt", "job gpt");
    account.started(Step{1});
    account.ended(ended(Step{1}, fail(code, "the Slot was written")));
    REQUIRE(account.collect() == Step{1});
    REQUIRE(account.stats({}).failed == 1);
    const std::string& said = code == Errc::cancelled ? Lines::others : Lines::errors;
    REQUIRE(said.find("job gpt: capture step 1: the Slot was written") != std::string::npos);
    REQUIRE(account.stats({}).last_error.find("job gpt: capture step 1") != std::string::npos);
    REQUIRE(Lines::errors.empty() == (code == Errc::cancelled));
    // Once a minute.
    account.ended(ended(Step{2}, fail(code, "again")));
    REQUIRE(account.collect() == Step{2});
    REQUIRE((Lines::errors + Lines::others).find("again") == std::string::npos);
  }
}

}  // namespace ckpt::client
