// Goal:   the shell does what it says: disabled it does nothing, wrong options are told before
//         anything is started, what was moved from answers with an error, and a rank has one
//         Checkpointer in a process.
// Method: calls that need no engine, and embedded engines without a directory.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>
#include <optional>
#include <vector>

#include "client/open_claim.hpp"

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

}  // namespace

TEST_CASE("checkpointer: disabled, every call is a no-op", "[unit][client]") {
  auto opened = Checkpointer::open(disabled_options());
  REQUIRE(opened);
  Checkpointer checkpointer = std::move(*opened);
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
  REQUIRE(checkpointer.restore(Step{1}).error().code() == Errc::not_found);
  REQUIRE(checkpointer.restore_from("/nowhere").error().code() == Errc::not_found);
  REQUIRE(checkpointer.restored_ok(Step{1}));
  REQUIRE(checkpointer.stats().saves_started == 0);
  REQUIRE(checkpointer.status().value().empty());
  REQUIRE(checkpointer.close());
  REQUIRE(checkpointer.close());
}

TEST_CASE("checkpointer: what was moved from answers with an error", "[unit][client]") {
  auto opened = Checkpointer::open(disabled_options());
  REQUIRE(opened);
  Checkpointer from = std::move(*opened);
  const Checkpointer to = std::move(from);
  for (const Status& status :
       {from.add("a", {}), from.remove("a"), from.guard(), from.prepare(), from.close(),
        from.wait(Step{1}, Level::captured, {}), from.restored_ok(Step{1})}) {
    REQUIRE_FALSE(status);
    REQUIRE(status.error().code() == Errc::invalid_argument);
    REQUIRE(status.error().text() == "this Checkpointer was moved from");
  }
  REQUIRE_FALSE(from.save(Step{1}));
  REQUIRE_FALSE(from.restore());
  REQUIRE_FALSE(from.blob("a"));
  REQUIRE(from.stats().failed == 0);
  REQUIRE_FALSE(from.status());
}

TEST_CASE("checkpointer: wrong options are told before anything is started", "[unit][client]") {
  const auto opened = Checkpointer::open({});
  REQUIRE_FALSE(opened);
  REQUIRE(opened.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(opened.error().text(), Catch::Contains("option job"));
}

TEST_CASE("checkpointer: a rank that is open is not opened again by the same process",
          "[unit][client]") {
  auto first = Checkpointer::open(embedded_options());
  REQUIRE(first);
  const auto second = Checkpointer::open(embedded_options());
  REQUIRE_FALSE(second);
  REQUIRE(second.error().code() == Errc::invalid_argument);
  REQUIRE(second.error().text() ==
          "rank 0 of job twice: this process has it open already: close that one first");
  REQUIRE(Checkpointer::open(embedded_options(1)));

  // Moving it changes nothing.
  std::optional<Checkpointer> moved(std::move(*first));
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
      const auto claim = client::OpenClaim::take("twice", 0);
      moved.reset();  // The parent's: nothing of it is ours.
      const bool is_kept = !client::OpenClaim::take("twice", 0);
      ::_exit(claim && is_kept ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    REQUIRE_FALSE(Checkpointer::open(embedded_options()));
  }
}

}  // namespace ckpt
