// Goal:   a published checkpoint comes back into registered tensors with no daemon, and a path that
//         holds none, a damaged one or one of another world says so.
// Method: captures of a session are published into a temporary directory by the real storage code,
//         on the real file system, and restored from there.
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <ckpt/published.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.hpp"
#include "client/checkpoint_session.hpp"
#include "os/pool_file_system.hpp"
#include "storage/member_writer.hpp"
#include "storage/publish.hpp"
#include "support/run_task.hpp"
#include "unit/client/fake_engine.hpp"

namespace ckpt::client {

namespace {

using Catch::Contains;
using test::FakeNode;

class Directory {
 public:
  Directory() {
    std::string path = std::filesystem::temp_directory_path() / "ckpt-restore-XXXXXX";
    REQUIRE(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Task<void> publish_shard(storage::Site site, test::FakeShard shard) {
  const format::StepId at = shard.record->id.at;
  CKPT_CO_TRY(const std::string work, co_await storage::make_work_directory(site, at, 1));
  storage::ShardToWrite source;
  source.record = shard.record;
  os::FileSpan span;
  span.bytes = shard.bytes;
  source.slot = {span};
  storage::TransferHooks hooks;
  CKPT_CO_TRY(const auto flushed, co_await storage::write_shard(site.files(), std::move(source),
                                                                site.at(work), std::move(hooks)));
  storage::PublishOrder order;
  order.work_name = work;
  order.job = shard.record->job;
  order.run = shard.record->run;
  order.at = at;
  order.digests = {flushed.digest};
  CKPT_CO_TRY(const auto published, co_await storage::publish(site, std::move(order)));
  (void)published;
  co_return Status();
}

void publish(const std::string& directory, const test::FakeShard& shard) {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  const auto files = os::make_pool_file_system();
  const Status done =
      test::run_task(context, publish_shard(storage::Site(*files, *clock, directory), shard));
  if (!done) FAIL(done.error().message());
}

struct Trainer {
  explicit Trainer(Options options = {})
      : session(with_job(std::move(options)), test::link_to(node)) {
    TensorRef tensor;
    tensor.data = weights.data();
    tensor.shape = {static_cast<std::int64_t>(weights.size())};
    REQUIRE(session.add("weights", tensor));
    REQUIRE(session.add_blob("rng", rng));
  }
  static Options with_job(Options options) {
    Log::set_level(LogLevel::error);
    options.job = "unit";
    return options;
  }
  void save(std::uint64_t step) {
    std::fill(weights.begin(), weights.end(), static_cast<std::byte>(step));
    std::fill(rng.begin(), rng.end(), static_cast<std::byte>(step + 100));
    REQUIRE(session.save(Step{step}, {}, Due::always));
    REQUIRE(session.guard({}));
    REQUIRE(session.prepare());
  }

  std::shared_ptr<FakeNode> node = std::make_shared<FakeNode>();
  std::vector<std::byte> weights = std::vector<std::byte>(5'000'000);
  std::vector<std::byte> rng = std::vector<std::byte>(33);
  CheckpointSession session;
};

}  // namespace

TEST_CASE("restore from storage: a checkpoint, or the newest of a directory", "[unit][client]") {
  const Directory directory;
  {
    Trainer trainer;
    trainer.save(3);
    trainer.save(7);
    for (const auto& shard : trainer.node->shards) publish(directory.path(), shard);
  }
  Trainer trainer;
  SECTION("the newest of the directory") {
    const auto restored = trainer.session.restore({.from = directory.path()});
    if (!restored) FAIL(restored.error().message());
    REQUIRE(restored->step == Step{7});
    REQUIRE(restored->source == RestoreSource::storage);
    REQUIRE_THAT(restored->source_name, Contains("step-000000007"));
    REQUIRE(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{7}));
    REQUIRE(trainer.rng == std::vector<std::byte>(33, std::byte{107}));
  }
  SECTION("a rank's shard, whoever asks") {
    const ChooseTargets weights = [&](Step, std::span<const StoredTensor> stored) {
      REQUIRE(stored.size() == 1);
      const auto size = static_cast<std::int64_t>(trainer.weights.size());
      TensorRef target{trainer.weights.data(), DType::u8, {size}};
      return Result<std::vector<NamedTensor>>(
          std::vector<NamedTensor>{{std::string(stored[0].name), target}});
    };
    Options third;
    third.rank = 2;
    third.world_size = 3;
    CheckpointSession other(third, test::link_to(trainer.node));
    REQUIRE(other.restore({.from = directory.path()}).error().code() == Errc::unsupported);
    const auto restored = other.restore({.from = directory.path()}, Choice{weights, 0});
    if (!restored) FAIL(restored.error().message());
    REQUIRE(restored->step == Step{7});
    REQUIRE(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{7}));
    REQUIRE(other.restore({.from = directory.path()}, Choice{weights, 1}).error().code() ==
            Errc::not_found);
  }
  SECTION("this one") {
    const auto restored = trainer.session.restore({.from = directory.path() + "/step-000000003"});
    REQUIRE(restored);
    REQUIRE(restored->step == Step{3});
    REQUIRE(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{3}));
  }
}

TEST_CASE("restore from storage: a path names its step by itself", "[unit][client]") {
  Trainer trainer;
  const auto restored = trainer.session.restore({.step = Step{3}, .from = "/anywhere"});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(restored.error().text(), Contains("restore step 3 from /anywhere: give one"));
}

TEST_CASE("restore from storage: its progress is reported to its own watch only",
          "[unit][client]") {
  const Directory directory;
  Trainer trainer;
  trainer.save(7);
  publish(directory.path(), trainer.node->shards[0]);
  std::vector<RestoreProgress> told;
  const RestoreWatch watch = [&](const RestoreProgress& progress) {
    told.push_back(progress);
    return progress.phase == RestoreProgress::Phase::filling;  // Too late: what copies is finished.
  };
  const auto restored = trainer.session.restore({.from = directory.path(), .watch = watch});
  REQUIRE(restored);
  REQUIRE_FALSE(told.empty());
  CHECK(told.front().phase == RestoreProgress::Phase::filling);
  CHECK(told.front().bytes == 0);
  CHECK(told.front().bytes_total == restored->bytes);
  CHECK(told.front().source_name == "storage");
  CHECK(told.back().phase == RestoreProgress::Phase::ended);
  told.clear();
  REQUIRE(trainer.session.restore({.from = directory.path()}));
  CHECK(told.empty());
}

TEST_CASE("restore from storage: the watch can end it while memory is filled", "[unit][client]") {
  const Directory directory;
  Trainer trainer;
  trainer.save(7);
  publish(directory.path(), trainer.node->shards[0]);
  trainer.weights.assign(trainer.weights.size(), std::byte{1});
  std::vector<RestoreProgress::Phase> phases;
  const RestoreWatch gives_up = [&](const RestoreProgress& progress) {
    phases.push_back(progress.phase);
    return false;
  };
  const auto restored = trainer.session.restore({.from = directory.path(), .watch = gives_up});
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::unavailable);
  CHECK_THAT(restored.error().text(), Contains("given it up"));
  CHECK(trainer.weights == std::vector<std::byte>(trainer.weights.size(), std::byte{1}));
  REQUIRE_FALSE(phases.empty());
  CHECK(phases.back() == RestoreProgress::Phase::ended);
  REQUIRE(trainer.session.restore({.from = directory.path()}));  // The next one has no watch.
}

TEST_CASE("restore from storage: its watch learns of the end, whatever it fails at",
          "[unit][client]") {
  const Directory directory;
  Trainer trainer;
  std::vector<RestoreProgress::Phase> phases;
  const RestoreWatch watch = [&](const RestoreProgress& progress) {
    phases.push_back(progress.phase);
    return true;
  };
  const std::string nothing = directory.path() + "/nothing";
  REQUIRE_FALSE(trainer.session.restore({.from = nothing, .watch = watch}));
  REQUIRE_FALSE(phases.empty());
  CHECK(phases.back() == RestoreProgress::Phase::ended);
}

TEST_CASE("list published: newest first, and what is damaged is told", "[unit][client]") {
  const Directory directory;
  {
    Trainer trainer;
    for (const std::uint64_t step : {3, 7, 9}) trainer.save(step);
    for (const auto& shard : trainer.node->shards) publish(directory.path(), shard);
  }
  std::filesystem::resize_file(directory.path() + "/step-000000009/manifest.json", 100);
  const auto published = list_published(directory.path());
  if (!published) FAIL(published.error().message());
  REQUIRE(published->checkpoints.size() == 2);
  REQUIRE(published->checkpoints[0].step == Step{7});
  REQUIRE(published->checkpoints[0].path == directory.path() + "/step-000000007");
  REQUIRE(published->checkpoints[0].world_size == 1);
  REQUIRE(published->checkpoints[1].step == Step{3});
  REQUIRE(published->damage.size() == 1);
  REQUIRE_THAT(published->damage[0], Contains("step-000000009"));
  REQUIRE(list_published(directory.path() + "/nothing").error().code() == Errc::not_found);
}

TEST_CASE("restore from storage: what is no good checkpoint is refused", "[unit][client]") {
  const Directory directory;
  Options options;
  std::string path = directory.path();
  Errc expected{};
  {
    Trainer trainer;
    trainer.save(3);
    publish(directory.path(), trainer.node->shards[0]);
  }
  SECTION("nothing there") {
    path += "/nothing";
    expected = Errc::not_found;
  }
  SECTION("another world size") {
    options.world_size = 2;
    expected = Errc::unsupported;
  }
  SECTION("a flipped bit in the file") {
    path += "/step-000000003";
    std::fstream file(path + "/rank-00000.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    REQUIRE(file);
    file.seekp(1'000'000);
    file.put('\x55');
    file.close();
    expected = Errc::corruption;
  }
  SECTION("a flipped bit in the part") {
    path += "/step-000000003";
    std::fstream file(path + "/rank-00000.part", std::ios::in | std::ios::out | std::ios::binary);
    REQUIRE(file);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
    file.close();
    expected = Errc::corruption;
  }
  SECTION("a part that is missing") {
    path += "/step-000000003";
    std::filesystem::remove(path + "/rank-00000.part");
    expected = Errc::corruption;
  }
  SECTION("a file that is missing") {
    path += "/step-000000003";
    std::filesystem::remove(path + "/rank-00000.safetensors");
    expected = Errc::corruption;
  }
  SECTION("a link in a file's place") {
    path += "/step-000000003";
    std::filesystem::rename(path + "/rank-00000.safetensors", directory.path() + "/aside");
    std::filesystem::create_symlink(directory.path() + "/aside", path + "/rank-00000.safetensors");
    expected = Errc::corruption;
  }
  SECTION("a manifest that was cut off") {
    path += "/step-000000003";
    std::filesystem::resize_file(path + "/manifest.json", 100);
    expected = Errc::corruption;
  }
  Trainer trainer(options);
  std::fill(trainer.weights.begin(), trainer.weights.end(), std::byte{0x11});
  const auto restored = trainer.session.restore({.from = path});
  REQUIRE_FALSE(restored);
  INFO(restored.error().message());
  REQUIRE(restored.error().code() == expected);
  REQUIRE(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{0x11}));
}

}  // namespace ckpt::client
