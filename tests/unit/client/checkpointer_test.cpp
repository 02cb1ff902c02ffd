// Goal:   the shell does what it says: disabled it does nothing, wrong options fail before
//         anything is started, a moved-from object answers with an error, and a rank has one
//         Checkpointer in a process. One that goes harms nobody.
// Method: calls that need no engine, and embedded engines.
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <ckpt/framework.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "client/open_claim.hpp"
#include "support/sanitized.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt {

namespace {

Options disabled_options() {
  Options options;
  options.disable = true;
  return options;
}

Options embedded_options(std::uint32_t rank = 0) {
  Options options;
  options.job = "twice";
  options.rank = rank;
  options.world_size = 2;
  options.embedded = true;
  options.memory_budget = 64 << 20;
  return options;
}

void add_weights(Checkpointer& checkpointer, std::vector<std::byte>& weights) {
  TensorRef tensor;
  tensor.data = weights.data();
  tensor.shape = {static_cast<std::int64_t>(weights.size())};
  REQUIRE(checkpointer.add("weights", tensor));
}

[[noreturn]] void wait_until_a_handler_exits(int told) {
  static auto checkpointer = Checkpointer::open(embedded_options());
  (void)std::signal(SIGUSR1, [](int) { std::exit(7); });
  // The other rank never comes.
  if (checkpointer && ::write(told, "w", 1) == 1) (void)checkpointer->restore({});
  ::_exit(1);
}

// Exactly there: a handler that exits in the middle of malloc, say, hangs by itself.
bool is_asleep_in_a_wait(pid_t process) {
  long number = 0;
  std::ifstream("/proc/" + std::to_string(process) + "/syscall") >> number;
  return number == SYS_futex;
}

}  // namespace

TEST_CASE("checkpointer: disabled, every call is a no-op", "[unit][client]") {
  auto opened = FrameworkCheckpointer::open(disabled_options());
  REQUIRE(opened);
  FrameworkCheckpointer checkpointer = std::move(*opened);
  std::vector<std::byte> bytes(16);
  TensorRef tensor;
  tensor.data = bytes.data();
  tensor.shape = {16};
  REQUIRE(checkpointer.add("a", tensor));
  REQUIRE(checkpointer.add("a", tensor));
  REQUIRE(checkpointer.remove("b"));
  REQUIRE(checkpointer.add_blob("rng", bytes));
  REQUIRE(checkpointer.set_blob("loader", bytes));
  REQUIRE_FALSE(checkpointer.blob("loader"));
  REQUIRE(checkpointer.prepare());
  REQUIRE(checkpointer.save_checkpoint_if_needed(Step{1}).value() == SaveOutcome::disabled);
  REQUIRE(checkpointer.save(Step{0}).value() == SaveOutcome::disabled);
  REQUIRE(checkpointer.guard());
  REQUIRE(checkpointer.wait(Step{1}, Level::durable, std::chrono::hours(1)));
  REQUIRE(checkpointer.restore().error().code() == Errc::not_found);
  REQUIRE(checkpointer.restore({.step = Step{1}}).error().code() == Errc::not_found);
  REQUIRE(checkpointer.restore({.from = "/nowhere"}).error().code() == Errc::not_found);
  const auto chosen = checkpointer.restore_chosen({.from = "/nowhere"}, {});
  REQUIRE(chosen.error().code() == Errc::not_found);
  REQUIRE(checkpointer.is_due(Step{1}).value() == false);
  REQUIRE(checkpointer.restored_ok(Step{1}));
  REQUIRE(checkpointer.stats().saves_started == 0);
  REQUIRE(checkpointer.status().value().empty());
  REQUIRE(checkpointer.close());
  REQUIRE(checkpointer.close());
}

TEST_CASE("checkpointer: without a directory nobody waits for what is never stored",
          "[unit][client]") {
  auto opened = Checkpointer::open(embedded_options());
  REQUIRE(opened);
  const Status waited = opened->wait(Step{1}, Level::durable, std::chrono::hours(1));
  REQUIRE(waited.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(waited.error().text(), Catch::Contains("job twice has no directory"));
}

TEST_CASE("checkpointer: a wait for ever does not fail for its length", "[unit][client]") {
  constexpr auto for_ever = std::chrono::milliseconds::max();
  Options options = embedded_options();
  options.world_size = 1;
  options.open_deadline = options.restore_deadline = for_ever;
  auto opened = Checkpointer::open(options);
  REQUIRE((opened ? "" : opened.error().message()) == "");
  CHECK(opened->restore().error().code() == Errc::not_found);
  REQUIRE(opened->save_checkpoint_if_needed(Step{1}));
  REQUIRE(opened->wait(Step{1}, Level::captured, for_ever));
  CHECK(opened->close(for_ever));
}

TEST_CASE("checkpointer: a moved-from one answers with an error", "[unit][client]") {
  auto opened = FrameworkCheckpointer::open(disabled_options());
  REQUIRE(opened);
  FrameworkCheckpointer from = std::move(*opened);
  const FrameworkCheckpointer to = std::move(from);
  for (const Status& status :
       {from.add("a", {}), from.remove("a"), from.guard(), from.prepare(), from.close(),
        from.wait(Step{1}, Level::captured, {}), from.restored_ok(Step{1})}) {
    REQUIRE_FALSE(status);
    REQUIRE(status.error().code() == Errc::invalid_argument);
    REQUIRE(status.error().text() == "this Checkpointer is not open (moved from, or never opened)");
  }
  REQUIRE_FALSE(from.save(Step{1}));
  REQUIRE_FALSE(from.restore());
  REQUIRE_FALSE(from.blob("a"));
  REQUIRE(from.stats().failed == 0);
  REQUIRE_FALSE(from.status());
}

TEST_CASE("checkpointer: wrong options are reported before anything is started", "[unit][client]") {
  const auto opened = Checkpointer::open({});
  REQUIRE_FALSE(opened);
  REQUIRE(opened.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(opened.error().text(), Catch::Contains("option job"));
}

TEST_CASE("checkpointer: a rank that is open is not opened again by the same process",
          "[unit][client]") {
  auto first = FrameworkCheckpointer::open(embedded_options());
  REQUIRE(first);
  const auto second = Checkpointer::open(embedded_options());
  REQUIRE_FALSE(second);
  REQUIRE(second.error().code() == Errc::invalid_argument);
  REQUIRE(second.error().text() ==
          "rank 0 of job twice: this process has it open already: close that one first");
  REQUIRE(Checkpointer::open(embedded_options(1)));

  // Moving it changes nothing.
  std::optional<FrameworkCheckpointer> moved(std::move(*first));
  REQUIRE_FALSE(Checkpointer::open(embedded_options()));
  SECTION("until it is closed") {
    REQUIRE(moved->close());
    REQUIRE(Checkpointer::open(embedded_options()));
  }
  SECTION("until it is destroyed") {
    moved.reset();
    REQUIRE(Checkpointer::open(embedded_options()));
  }
  SECTION("but a fork may have one of its own") {
    const pid_t child = ::fork();
    if (child == 0) {
      const Status waited = moved->wait(Step{1}, Level::captured, std::chrono::milliseconds(0));
      const bool refuses = !waited && waited.error().code() == Errc::invalid_argument &&
                           !moved->stats().captured && !moved->blob("none");
      const auto claim = client::OpenClaim::take("in ", "twice", 0);
      moved.reset();  // The parent's: nothing of it is ours.
      const bool is_kept = !client::OpenClaim::take("in ", "twice", 0);
      ::_exit(refuses && claim && is_kept ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    REQUIRE_FALSE(Checkpointer::open(embedded_options()));
  }
}

TEST_CASE("checkpointer: a handler that exits in the middle of a call ends the process",
          "[unit][client]") {
  // A handler may not exit, strictly taken: that is what the thread sanitizer finds, and ends by.
  if (test::is_thread_sanitized) {
    WARN("left out under a sanitizer: it ends what exits in a handler");
    return;
  }
  int told[2];
  REQUIRE(::pipe(told) == 0);
  const pid_t child = ::fork();
  if (child == 0) wait_until_a_handler_exits(told[1]);
  ::close(told[1]);
  char byte = 0;
  REQUIRE(::read(told[0], &byte, 1) == 1);
  ::close(told[0]);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_asleep_in_a_wait(child) && std::chrono::steady_clock::now() < deadline)
    ::sched_yield();
  ::kill(child, SIGUSR1);
  int status = 0;
  pid_t ended = 0;
  while (ended == 0 && std::chrono::steady_clock::now() < deadline) {
    ::sched_yield();
    ended = ::waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) ::kill(child, SIGKILL);
  if (ended == 0) ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 7);
}

TEST_CASE("checkpointer: one that goes while its step is written crashes nobody",
          "[unit][client]") {
  const test::TemporaryDirectory directory;
  std::vector<std::byte> weights(32 << 20);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Options options = embedded_options();
    options.world_size = 1;
    options.memory_budget = 256 << 20;
    options.dir = directory.path() / std::to_string(step);
    options.save_storage_interval.steps = 1;
    auto checkpointer = Checkpointer::open(options);
    REQUIRE(checkpointer);
    add_weights(*checkpointer, weights);
    REQUIRE(checkpointer->save(Step{step}));
    // The flush begins with the commit, and takes longer than what comes now.
    REQUIRE(checkpointer->wait(Step{step}, Level::committed, std::chrono::seconds(30)));
  }
}

TEST_CASE("checkpointer: a step that nobody has, asked for in mid-training, costs nothing",
          "[unit][client]") {
  std::vector<std::byte> weights(100'000);
  Options options = embedded_options();
  options.world_size = 1;
  auto checkpointer = Checkpointer::open(options);
  REQUIRE(checkpointer);
  add_weights(*checkpointer, weights);
  const auto save = [&](std::uint64_t step) {
    const auto saved = checkpointer->save(Step{step});
    REQUIRE(saved);
    REQUIRE(*saved == SaveOutcome::started);
    REQUIRE(checkpointer->wait(Step{step}, Level::committed, std::chrono::seconds(30)));
  };
  for (std::uint64_t step = 1; step <= 9; step += 3) {
    save(step);
    const auto absent = checkpointer->restore({.step = Step{step + 1'000}});
    REQUIRE_FALSE(absent);
    REQUIRE(absent.error().code() == Errc::not_found);
    save(step + 1);
    REQUIRE_FALSE(checkpointer->restore({.step = Step{step + 1'000}}));
    const auto newest = checkpointer->restore();
    REQUIRE(newest);
    REQUIRE(newest->step == Step{step + 1});
  }
}

}  // namespace ckpt
