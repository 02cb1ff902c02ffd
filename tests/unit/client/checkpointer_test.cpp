// Goal:   the shell does what it says without a daemon: disabled it does nothing, wrong options are
//         told before anything is started, and what was moved from answers with an error.
// Method: only calls that need no engine.
#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>
#include <vector>

namespace ckpt {

namespace {

Options disabled_options() {
  Options options;
  options.disable = true;
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

}  // namespace ckpt
