// Goal:   a trainer that waits for storage gets it at once, and hears why when it cannot have it.
// Method: a Checkpointer with an engine in the process and a real directory, whose storage interval
//         never comes; the directory is taken away.
#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "support/patience.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt {
namespace {

using Catch::Contains;
using test::patience;

struct StoringTrainer {
  explicit StoringTrainer(const std::string& checkpoints = "",
                          const std::string& compression = "") {
    Log::set_level(LogLevel::error);
    Options options;
    options.job = "stored";
    options.dir = checkpoints.empty() ? directory.file("checkpoints") : checkpoints;
    options.embedded = true;
    options.compression = compression;
    options.memory_budget = 64 << 20;
    options.save_storage_interval = {1'000'000, {}};
    auto opened = Checkpointer::open(options);
    if (!opened) FAIL(opened.error().message());
    checkpointer.emplace(std::move(*opened));
    TensorRef tensor;
    tensor.data = bytes.data();
    tensor.shape = {static_cast<std::int64_t>(bytes.size())};
    REQUIRE(checkpointer->add("weight", tensor));
  }

  test::TemporaryDirectory directory;
  std::vector<std::byte> bytes = std::vector<std::byte>(5000);
  std::optional<Checkpointer> checkpointer;
};

}  // namespace

TEST_CASE("stored steps: a wait until a step is durable makes it so", "[unit][client]") {
  StoringTrainer trainer;
  REQUIRE(trainer.checkpointer->save(Step{3}).value() == SaveOutcome::started);
  const Status durable = trainer.checkpointer->wait(Step{3}, Level::durable, patience);
  if (!durable) FAIL(durable.error().message());
  REQUIRE(trainer.checkpointer->stats().durable == Step{3});
  REQUIRE(std::filesystem::exists(trainer.directory.file("checkpoints/step-000000003")));
  REQUIRE(trainer.checkpointer->close());
}

TEST_CASE("stored steps: compressed ones come back, to a trainer that compresses or not",
          "[unit][client]") {
  test::TemporaryDirectory directory;
  const std::string checkpoints = directory.file("checkpoints");
  std::vector<std::byte> saved;
  {
    StoringTrainer trainer(checkpoints, "zstd:3");
    for (std::size_t index = 0; index < trainer.bytes.size(); ++index)
      trainer.bytes[index] = static_cast<std::byte>(index / 100);
    saved = trainer.bytes;
    REQUIRE(trainer.checkpointer->save(Step{3}).value() == SaveOutcome::started);
    REQUIRE(trainer.checkpointer->wait(Step{3}, Level::durable, patience));
    REQUIRE(trainer.checkpointer->close());
  }
  const std::string file = checkpoints + "/step-000000003/rank-00000.safetensors";
  CHECK(std::filesystem::exists(file + ".ckz"));
  CHECK_FALSE(std::filesystem::exists(file));
  for (const bool is_from_path : {false, true}) {
    CAPTURE(is_from_path);
    StoringTrainer again(checkpoints, is_from_path ? "zstd" : "");
    RestoreRequest request;
    if (is_from_path) request.from = checkpoints;
    const auto restored = again.checkpointer->restore(request);
    if (!restored) FAIL(restored.error().message());
    CHECK(restored->step == Step{3});
    CHECK(again.bytes == saved);
  }
}

TEST_CASE("stored steps: why a step is not stored reaches the trainer", "[unit][client]") {
  StoringTrainer trainer;
  REQUIRE(trainer.checkpointer->save(Step{3}).value() == SaveOutcome::started);
  REQUIRE(trainer.checkpointer->wait(Step{3}, Level::committed, patience));
  const std::string directory = trainer.directory.file("checkpoints");
  std::filesystem::remove_all(directory);
  std::ofstream(directory) << "in its place";  // Else it would be made again.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Status durable;
  do {
    durable = trainer.checkpointer->wait(Step{3}, Level::durable, std::chrono::milliseconds(10));
    REQUIRE_FALSE(durable);
  } while (trainer.checkpointer->stats().degraded.empty() &&
           std::chrono::steady_clock::now() < deadline);
  durable = trainer.checkpointer->wait(Step{3}, Level::durable, {});
  REQUIRE_THAT(durable.error().text(), Contains("step 3 is not stored") && Contains("checkpoints"));
  REQUIRE_THAT(trainer.checkpointer->stats().last_error, Contains("step 3 is not stored"));
  const Status closed = trainer.checkpointer->close(std::chrono::milliseconds(10));
  REQUIRE_FALSE(closed);
  REQUIRE_THAT(closed.error().text(), Contains("step 3 is not stored"));
}

TEST_CASE("stored steps: a directory that was cleared in mid-run is whole again",
          "[unit][client]") {
  StoringTrainer trainer;
  for (const std::uint64_t step : {3u, 4u}) {
    REQUIRE(trainer.checkpointer->save(Step{step}).value() == SaveOutcome::started);
    REQUIRE(trainer.checkpointer->wait(Step{step}, Level::durable, patience));
    std::filesystem::remove_all(trainer.directory.file("checkpoints/.libckpt"));
  }
  REQUIRE(trainer.checkpointer->save(Step{5}).value() == SaveOutcome::started);
  const Status closed = trainer.checkpointer->close(patience);
  if (!closed) FAIL(closed.error().message());
  StoringTrainer next(trainer.directory.file("checkpoints"));
  const auto restored = next.checkpointer->restore();
  if (!restored) FAIL(restored.error().message());
  REQUIRE(restored->step == Step{5});
  REQUIRE(restored->source == RestoreSource::storage);
}

TEST_CASE("stored steps: a step whose manifest is gone is damaged, and never nothing",
          "[unit][client]") {
  StoringTrainer trainer;
  for (const std::uint64_t step : {3u, 4u}) {
    REQUIRE(trainer.checkpointer->save(Step{step}).value() == SaveOutcome::started);
    REQUIRE(trainer.checkpointer->wait(Step{step}, Level::durable, patience));
  }
  REQUIRE(trainer.checkpointer->close(patience));
  const std::string directory = trainer.directory.file("checkpoints");
  std::filesystem::remove(directory + "/step-000000004/manifest.json");
  SECTION("an older one is served, and the reason says so") {
    StoringTrainer next(directory);
    const auto restored = next.checkpointer->restore();
    if (!restored) FAIL(restored.error().message());
    REQUIRE(restored->step == Step{3});
    REQUIRE_THAT(restored->reason, Contains("1 checkpoint on storage is damaged"));
  }
  SECTION("nobody begins anew over what is left of them") {
    std::filesystem::remove(directory + "/step-000000003/manifest.json");
    StoringTrainer next(directory);
    const auto restored = next.checkpointer->restore();
    REQUIRE_FALSE(restored);
    REQUIRE(restored.error().code() == Errc::corruption);
  }
}

TEST_CASE("stored steps: a directory that became another run's is left alone", "[unit][client]") {
  StoringTrainer trainer, other;
  REQUIRE(other.checkpointer->save(Step{1}).value() == SaveOutcome::started);
  REQUIRE(other.checkpointer->close(patience));
  const std::string directory = trainer.directory.file("checkpoints");
  std::filesystem::remove_all(directory);
  std::filesystem::rename(other.directory.file("checkpoints"), directory);
  REQUIRE(trainer.checkpointer->save(Step{3}).value() == SaveOutcome::started);
  const Status closed = trainer.checkpointer->close(std::chrono::seconds(3));
  REQUIRE_FALSE(closed);
  REQUIRE_THAT(closed.error().text(), Contains("by now it is the directory of run"));
  REQUIRE_FALSE(std::filesystem::exists(directory + "/step-000000003"));
}

}  // namespace ckpt
