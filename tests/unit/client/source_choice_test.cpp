// Goal:   a trainer says where its step may come from, and gets it from there or learns what the
//         other place has; it trains on only where nothing was lost by that.
// Method: Checkpointers with an engine in this process and a directory, one after another: the
//         second one finds no memory. A choice that nobody could have is refused at once.
#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>

#include "base/log.hpp"
#include "support/temporary_directory.hpp"

using namespace ckpt;
using Catch::Contains;

namespace {

constexpr std::chrono::seconds patient{60};

struct Trainer {
  explicit Trainer(const std::string& dir) {
    Log::set_level(LogLevel::error);
    Options options;
    options.job = "source-choice";
    options.dir = dir;
    if (!dir.empty()) options.save_storage_interval = {2, {}};
    options.embedded = true;
    options.memory_budget = 64 << 20;
    auto opened = Checkpointer::open(options);
    REQUIRE((opened ? "" : opened.error().message()) == "");
    checkpointer.emplace(std::move(*opened));
    TensorRef tensor;
    tensor.data = weights.data();
    tensor.dtype = DType::f32;
    tensor.shape = {static_cast<std::int64_t>(weights.size())};
    REQUIRE(checkpointer->add("weights", tensor));
  }
  void save(std::uint64_t step, Level level) {
    weights.assign(weights.size(), static_cast<float>(step));
    REQUIRE(checkpointer->save(Step{step}, {}, patient).value() == SaveOutcome::started);
    REQUIRE(checkpointer->wait(Step{step}, level, patient));
  }
  void save_two_and_store_the_first() {
    save(2, Level::durable);
    save(3, Level::committed);
  }
  Result<Restored> restore(SourceChoice source, std::string from = {}) {
    RestoreRequest request;
    request.source = source;
    request.from = std::move(from);
    return checkpointer->restore(std::move(request));
  }

  std::vector<float> weights = std::vector<float>(5000);
  std::optional<Checkpointer> checkpointer;
};

}  // namespace

TEST_CASE("source choice: storage gives the older step, and training goes on from it",
          "[unit][client]") {
  const test::TemporaryDirectory directory;
  Trainer trainer(directory.file("run"));
  REQUIRE(trainer.restore(SourceChoice::storage).error().code() == Errc::not_found);  // Of nothing.
  trainer.save_two_and_store_the_first();
  const auto restored = trainer.restore(SourceChoice::storage);
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(restored->step == Step{2});
  CHECK(restored->source == RestoreSource::storage);
  CHECK(restored->newest_seen == Step{3});
  CHECK(trainer.weights.front() == 2);
  trainer.save(3, Level::committed);
  CHECK(trainer.restore(SourceChoice::memory).value().step == Step{3});
}

TEST_CASE("source choice: without memory it says what storage has, and refuses to begin anew",
          "[unit][client]") {
  const test::TemporaryDirectory directory;
  {
    Trainer(directory.file("run")).save_two_and_store_the_first();
  }
  Trainer trainer(directory.file("run"));
  const auto refused = trainer.restore(SourceChoice::memory);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::unavailable);
  CHECK_THAT(refused.error().message(),
             Contains("from memory alone") && Contains("with storage, step 2 can be restored"));
  CHECK(trainer.weights.front() == 0);
  const auto saved = trainer.checkpointer->save(Step{1}, {}, patient);
  REQUIRE_FALSE(saved);
  CHECK(saved.error().code() == Errc::invalid_argument);
  CHECK(trainer.restore(SourceChoice::any).value().step == Step{2});
}

// Else a program that begins with the weights of another training at each start would replace the
// steps of the one before it.
TEST_CASE("source choice: a path is no answer to the job's own steps", "[unit][client]") {
  const test::TemporaryDirectory directory;
  const bool has_failed = GENERATE(false, true);
  {
    Trainer(directory.file("base")).save(8, Level::durable);
    Trainer(directory.file("run")).save_two_and_store_the_first();
  }
  Trainer trainer(directory.file("run"));
  if (has_failed) REQUIRE_FALSE(trainer.restore(SourceChoice::memory));
  CHECK(trainer.restore(SourceChoice::any, "/nowhere").error().code() == Errc::not_found);
  REQUIRE(trainer.restore(SourceChoice::any, directory.file("base")));
  CHECK(trainer.weights.front() == 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto saved = trainer.checkpointer->save(Step{1}, {}, patient);
    REQUIRE_FALSE(saved);
    CHECK(saved.error().code() == Errc::invalid_argument);
    REQUIRE(trainer.restore(SourceChoice::any, directory.file("base")));
  }
  if (GENERATE(false, true)) {
    CHECK(trainer.restore(SourceChoice::any).value().step == Step{2});
  } else {
    REQUIRE(trainer.checkpointer->start_fresh());
  }
  trainer.save(3, Level::committed);
}

TEST_CASE("source choice: where a job has no steps, training goes on from a path",
          "[unit][client]") {
  const test::TemporaryDirectory directory;
  Trainer(directory.file("base")).save(8, Level::durable);
  Trainer trainer(directory.file("run"));
  CHECK(trainer.restore(SourceChoice::any, "/nowhere").error().code() == Errc::not_found);
  REQUIRE(trainer.restore(SourceChoice::any, directory.file("base")));
  trainer.save(9, Level::committed);
}

TEST_CASE("source choice: one that no rank can have is refused at once", "[unit][client]") {
  const test::TemporaryDirectory directory;
  Trainer trainer(directory.file("run"));
  const auto with_path = trainer.restore(SourceChoice::memory, directory.file("run"));
  REQUIRE_FALSE(with_path);
  CHECK(with_path.error().code() == Errc::invalid_argument);
  CHECK_THAT(with_path.error().message(), Contains("the path is one"));
}

TEST_CASE("source choice: a job without a directory has no storage", "[unit][client]") {
  Trainer trainer("");
  const auto refused = trainer.restore(SourceChoice::storage);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().message(), Contains("no directory"));
  CHECK(trainer.restore(SourceChoice::memory).error().code() == Errc::not_found);
}
