// Goal:   a published checkpoint comes back into registered tensors with no daemon, for any number
//         of ranks, and a path that holds none, or a damaged one, says so.
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

// The shards of one step, by rank.
Task<void> publish_shards(storage::Site site, std::vector<test::FakeShard> shards) {
  const format::ShardRecord& first = *shards.front().record;
  CKPT_CO_TRY(const std::string work, co_await storage::make_work_directory(site, first.id.at, 1));
  storage::PublishOrder order;
  order.work_name = work;
  order.job = first.job;
  order.run = first.run;
  order.at = first.id.at;
  order.world_size = static_cast<std::uint32_t>(shards.size());
  for (const test::FakeShard& shard : shards) {
    storage::ShardToWrite source;
    source.record = shard.record;
    os::FileSpan span;
    span.bytes = shard.bytes;
    source.slot = {span};
    storage::TransferHooks hooks;
    CKPT_CO_TRY(const auto flushed, co_await storage::write_shard(site.files(), std::move(source),
                                                                  site.at(work), std::move(hooks)));
    order.digests.push_back(flushed.digest);
  }
  CKPT_CO_TRY(const auto published, co_await storage::publish(site, std::move(order)));
  (void)published;
  co_return Status();
}

void publish(const std::string& directory, std::vector<test::FakeShard> shards) {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  const auto files = os::make_pool_file_system();
  const storage::Site site(*files, *clock, directory);
  const Status done = test::run_task(context, publish_shards(site, std::move(shards)));
  if (!done) FAIL(done.error().message());
}

void publish(const std::string& directory, const test::FakeShard& shard) {
  publish(directory, std::vector<test::FakeShard>{shard});
}

struct RestoringTrainer {
  explicit RestoringTrainer(Options options = {})
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

// A rank that has some rows of a matrix, each full of its number, and a blob of its own.
struct Rows {
  static constexpr std::uint64_t all = 48, row_bytes = 300'000;
  Rows(std::uint32_t rank, std::uint32_t world) : Rows(rank, world, all * rank / world) {
    REQUIRE(session.add_blob("rank", blob));
  }

  std::uint64_t count() const { return bytes.size() / row_bytes; }
  test::FakeShard saved() {
    for (std::uint64_t row = 0; row < count(); ++row)
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(row * row_bytes), row_bytes,
                  static_cast<std::byte>(begin + row));
    blob[0] = static_cast<std::byte>(rank_ + 100);
    REQUIRE(session.save(Step{7}, {}, Due::always));
    REQUIRE(session.guard({}));
    REQUIRE(session.prepare());
    test::FakeShard shard = node->shards.back();
    auto record = *shard.record;
    record.id.rank = rank_;
    record.world_size = world_;
    shard.record = std::make_shared<const format::ShardRecord>(std::move(record));
    return shard;
  }
  bool are_right() const {
    for (std::uint64_t row = 0; row < count(); ++row) {
      const auto* const from = bytes.data() + row * row_bytes;
      if (!std::all_of(from, from + row_bytes,
                       [&](std::byte byte) { return byte == std::byte(begin + row); }))
        return false;
    }
    return true;
  }

  std::shared_ptr<FakeNode> node = std::make_shared<FakeNode>();
  std::uint64_t begin;
  std::vector<std::byte> bytes;
  std::vector<std::byte> blob = std::vector<std::byte>(1);
  CheckpointSession session;

 private:
  Rows(std::uint32_t rank, std::uint32_t world, std::uint64_t first_row)
      : begin(first_row),
        bytes((all * (rank + 1) / world - begin) * row_bytes),
        session(options_of(rank, world), test::link_to(node)),
        rank_(rank),
        world_(world) {
    TensorRef tensor{bytes.data(), DType::u8, {static_cast<std::int64_t>(count()), row_bytes}};
    tensor.piece = Piece{{all, row_bytes}, {begin, 0}, {}, {}, 0};
    REQUIRE(session.add("matrix", tensor));
  }
  static Options options_of(std::uint32_t rank, std::uint32_t world) {
    Log::set_level(LogLevel::error);
    Options options;
    options.job = "unit";
    options.rank = rank;
    options.world_size = world;
    return options;
  }
  std::uint32_t rank_, world_;
};

}  // namespace

TEST_CASE("restore from storage: any number of ranks gets the pieces that it has",
          "[unit][client]") {
  const Directory directory;
  std::vector<test::FakeShard> shards;
  for (const std::uint32_t rank : {0, 1, 2}) shards.push_back(Rows(rank, 3).saved());
  publish(directory.path(), std::move(shards));
  for (const std::uint32_t world : {1, 2, 3, 5}) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      INFO("rank " << rank << " of " << world);
      Rows rows(rank, world);
      const auto restored = rows.session.restore({.from = directory.path()});
      REQUIRE((restored ? "" : restored.error().message()) == "");
      CHECK(restored->step == Step{7});
      CHECK(rows.are_right());
      CHECK(rows.blob[0] == std::byte(100 + rank % 3));
    }
  }
}

TEST_CASE("restore from storage: whole tensors of several ranks are read by these only",
          "[unit][client]") {
  const Directory directory;
  RestoringTrainer trainer;
  trainer.save(7);
  std::vector<test::FakeShard> shards(2, trainer.node->shards[0]);
  auto record = *shards[1].record;
  record.id.rank = 1;
  record.layout.members[0].file_name = format::member_name(1, "safetensors");
  record.layout.members[1].file_name = format::member_name(1, "blobs");
  shards[1].record = std::make_shared<const format::ShardRecord>(std::move(record));
  for (test::FakeShard& shard : shards) {
    auto of_two = *shard.record;
    of_two.world_size = 2;
    shard.record = std::make_shared<const format::ShardRecord>(std::move(of_two));
  }
  publish(directory.path(), std::move(shards));
  Options options;
  options.rank = 1;
  options.world_size = 2;
  REQUIRE(RestoringTrainer(options).session.restore({.from = directory.path()}));
  options.world_size = 3;
  const auto restored = RestoringTrainer(options).session.restore({.from = directory.path()});
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::unsupported);
  CHECK_THAT(restored.error().message(),
             Contains("\"weights\" was saved whole by rank 0 and rank 1 of 2"));
}

TEST_CASE("restore from storage: a rank gets a tensor that another one saved", "[unit][client]") {
  const Directory directory;
  RestoringTrainer trainer;
  trainer.save(7);
  std::vector<test::FakeShard> shards(2, trainer.node->shards[0]);
  for (std::uint32_t rank : {0u, 1u}) {
    auto record = *shards[rank].record;
    record.id.rank = rank;
    record.world_size = 2;
    record.layout.members[0].file_name = format::member_name(rank, "safetensors");
    record.layout.members[1].file_name = format::member_name(rank, "blobs");
    if (rank == 1) record.layout.tensors[0].name = "other";
    shards[rank].record = std::make_shared<const format::ShardRecord>(std::move(record));
  }
  publish(directory.path(), std::move(shards));
  Options options;
  options.rank = 1;
  options.world_size = 2;
  RestoringTrainer swapped(options);
  const auto restored = swapped.session.restore({.from = directory.path()});
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(swapped.weights == std::vector<std::byte>(swapped.weights.size(), std::byte{7}));
  CHECK(swapped.rng == std::vector<std::byte>(swapped.rng.size(), std::byte{107}));
}

TEST_CASE("restore from storage: a checkpoint, or the newest of a directory", "[unit][client]") {
  const Directory directory;
  {
    RestoringTrainer trainer;
    trainer.save(3);
    trainer.save(7);
    for (const auto& shard : trainer.node->shards) publish(directory.path(), shard);
  }
  RestoringTrainer trainer;
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

TEST_CASE("restore from storage: a single rank passes over what is damaged", "[unit][client]") {
  const Directory directory;
  const std::string run = directory.path() + "/parent/run";
  std::filesystem::create_directories(run);
  {
    RestoringTrainer trainer;
    for (const std::uint64_t step : {3, 7, 9}) trainer.save(step);
    for (const auto& shard : trainer.node->shards) publish(run, shard);
  }
  std::fstream file(run + "/step-000000009/rank-00000.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1'000'000);
  file.put('\x55');
  file.close();
  Options options;
  SECTION("below a parent of runs") {
    RestoringTrainer trainer;
    const auto restored = trainer.session.restore({.from = directory.path()});
    if (!restored) FAIL(restored.error().message());
    CHECK(restored->step == Step{7});
    CHECK(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{7}));
  }
  SECTION("but not where it was named") {
    RestoringTrainer trainer;
    const std::vector<std::byte> before = trainer.weights;
    const auto restored = trainer.session.restore({.from = run + "/step-000000009"});
    REQUIRE_FALSE(restored);
    CHECK(restored.error().code() == Errc::corruption);
    CHECK(trainer.weights == before);
  }
  SECTION("and not where other ranks read other files") {
    options.world_size = 2;
    RestoringTrainer trainer(options);
    const ChooseTargets weights = [&](Step, std::span<const StoredTensor> stored) {
      TensorRef target{trainer.weights.data(), DType::u8, {5'000'000}};
      return Result<std::vector<NamedTensor>>(
          std::vector<NamedTensor>{{std::string(stored[0].name), target}});
    };
    const auto restored = trainer.session.restore({.from = run}, Choice{weights, 0});
    REQUIRE_FALSE(restored);
    CHECK(restored.error().code() == Errc::corruption);
  }
  SECTION("unless nothing is left") {
    for (const char* step : {"/step-000000003", "/step-000000007"})
      std::filesystem::resize_file(run + step + "/rank-00000.part", 10);
    RestoringTrainer trainer;
    const auto restored = trainer.session.restore({.from = run});
    REQUIRE_FALSE(restored);
    CHECK(restored.error().code() == Errc::corruption);
    CHECK_THAT(restored.error().message(), Contains("step-000000009"));
  }
}

TEST_CASE("restore from storage: a path names its step by itself", "[unit][client]") {
  RestoringTrainer trainer;
  const auto restored = trainer.session.restore({.step = Step{3}, .from = "/anywhere"});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(restored.error().text(), Contains("restore step 3 from /anywhere: give one"));
}

TEST_CASE("restore from storage: its progress is reported to its own watch only",
          "[unit][client]") {
  const Directory directory;
  RestoringTrainer trainer;
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
  RestoringTrainer trainer;
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
  RestoringTrainer trainer;
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

TEST_CASE("list published: newest first, and damage is reported", "[unit][client]") {
  const Directory directory;
  {
    RestoringTrainer trainer;
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

TEST_CASE("list published: one checkpoint, or all runs below a path", "[unit][client]") {
  const Directory directory;
  RestoringTrainer trainer;
  for (const std::uint64_t step : {3, 7}) {
    REQUIRE(trainer.session.set_metric("loss", 1.0 / static_cast<double>(step)));
    trainer.save(step);
    const std::string run = directory.path() + "/run" + std::to_string(step);
    std::filesystem::create_directory(run);
    publish(run, trainer.node->shards.back());
  }
  const auto all = list_published(directory.path());
  if (!all) FAIL(all.error().message());
  REQUIRE(all->checkpoints.size() == 2);
  CHECK(all->checkpoints[0].path == directory.path() + "/run7/step-000000007");
  CHECK(all->checkpoints[0].job == "fake");
  CHECK(all->checkpoints[0].metrics.at("loss") == 1.0 / 7);
  CHECK(all->checkpoints[0].created_unix_seconds > 0);
  const auto one = list_published(all->checkpoints[1].path);
  if (!one) FAIL(one.error().message());
  REQUIRE(one->checkpoints.size() == 1);
  CHECK(one->checkpoints[0].step == Step{3});
  std::filesystem::resize_file(all->checkpoints[1].path + "/manifest.json", 100);
  CHECK(list_published(all->checkpoints[1].path).error().code() == Errc::corruption);
  CHECK_THAT(list_published(directory.path())->damage.at(0), Contains("run3/step-000000003"));
}

TEST_CASE("newest slot bytes: those of the newest manifest that can be read", "[unit][client]") {
  const Directory directory;
  CHECK(newest_slot_bytes(directory.path(), 0) == 0);
  std::uint64_t bytes = 0;
  {
    RestoringTrainer trainer;
    for (const std::uint64_t step : {3, 7, 9}) trainer.save(step);
    for (const auto& shard : trainer.node->shards) publish(directory.path(), shard);
    bytes = trainer.node->shards.back().record->layout.slot_bytes;
  }
  CHECK(newest_slot_bytes(directory.path(), 0) == bytes);
  CHECK(newest_slot_bytes(directory.path(), 1) == 0);  // One rank saved it.
  std::filesystem::resize_file(directory.path() + "/step-000000009/manifest.json", 100);
  CHECK(newest_slot_bytes(directory.path(), 0) == bytes);
  CHECK(newest_slot_bytes(directory.path() + "/nothing", 0) == 0);
}

TEST_CASE("restore from storage: anything but a good checkpoint is refused", "[unit][client]") {
  const Directory directory;
  Options options;
  std::string path = directory.path();
  Errc expected{};
  {
    RestoringTrainer trainer;
    trainer.save(3);
    publish(directory.path(), trainer.node->shards[0]);
  }
  SECTION("nothing there") {
    path += "/nothing";
    expected = Errc::not_found;
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
  RestoringTrainer trainer(options);
  std::fill(trainer.weights.begin(), trainer.weights.end(), std::byte{0x11});
  const auto restored = trainer.session.restore({.from = path});
  REQUIRE_FALSE(restored);
  INFO(restored.error().message());
  REQUIRE(restored.error().code() == expected);
  REQUIRE(trainer.weights == std::vector<std::byte>(5'000'000, std::byte{0x11}));
}

}  // namespace ckpt::client
