// Goal:   the protocols hold on a real disk as on the one in memory.
// Method: save, verify, read back, save again and prune in a directory of this machine, through a
//         symbolic link, with the ring where there is one, and with the pool.
#include <stdlib.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "os/pool_file_system.hpp"
#include "os/ring_file_system.hpp"
#include "support/found_checkpoint.hpp"
#include "support/run_task.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

class DiskScene {
 public:
  explicit DiskScene(std::unique_ptr<os::FileSystem> made)
      : clock(make_system_clock(context.get_executor())), files(std::move(made)) {
    std::string pattern = std::filesystem::temp_directory_path() / "libckpt-storage-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    root = pattern;
    std::filesystem::create_directory(root + "/real");
    std::filesystem::create_directory_symlink("real", root + "/link");
  }
  ~DiskScene() {
    files.reset();
    std::filesystem::remove_all(root);
  }
  template <class T>
  Result<T> run(Task<T> task) {
    return run_task(context, std::move(task));
  }

  asio::io_context context;
  std::unique_ptr<Clock> clock;
  std::unique_ptr<os::FileSystem> files;
  std::string root;
};

std::vector<MadeShard> large_shards(format::StepId at) {
  std::vector<MadeShard> shards;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ShardWish wish;
    wish.run = test_run;
    wish.at = at;
    wish.rank = rank;
    wish.world_size = 2;
    wish.tensor_bytes = 9 * MiB + 17;
    wish.chunk_bytes = default_chunk_bytes;
    shards.push_back(make_shard(wish));
  }
  return shards;
}

void check_round_trip(std::unique_ptr<os::FileSystem> made) {
  DiskScene scene(std::move(made));
  const storage::Site site(*scene.files, *scene.clock, scene.root + "/link/job");
  storage::RunOrder open;
  open.job = "job";
  open.fresh_run = test_run;
  open.attempt = 1;
  const auto marker = scene.run(storage::open_run_directory(site, open));
  REQUIRE((marker ? "" : marker.error().message()) == "");
  REQUIRE(scene.run(storage::open_run_directory(site, open)).has_value());

  std::uint64_t attempt = 0;
  for (const auto at : {step_id(1), step_id(2), step_id(2, 2)}) {
    const auto saved = scene.run(save(site, large_shards(at), ++attempt));
    REQUIRE((saved ? "" : saved.error().message()) == "");
    const std::string path = site.at(saved->name);
    const auto report = scene.run(storage::verify_checkpoint(*scene.files, path));
    REQUIRE(report.has_value());
    REQUIRE(report->is_good());
    REQUIRE(report->foreign.empty());
    const auto shards = large_shards(at);
    std::vector<std::byte> target(shards[1].record->bytes);
    const storage::TransferHooks hooks;
    const Status read = scene.run(storage::read_shard(*scene.files, storage::ShardPlace(path),
                                                      shards[1].record, target, hooks));
    REQUIRE((read ? "" : read.error().message()) == "");
    REQUIRE(std::memcmp(target.data(), shards[1].bytes->data(), target.size()) == 0);
  }
  storage::RetentionOrder keep_one;
  keep_one.run = test_run;
  keep_one.rule.max_ckpt_num = 1;
  storage::CatalogOptions options;
  options.run = test_run;
  auto listed = scene.run(storage::read_catalog(site, options));
  REQUIRE(listed.has_value());
  const auto deleted = scene.run(storage::apply_retention(site, keep_one, *listed));
  REQUIRE(deleted.has_value());
  REQUIRE(deleted->size() == 1);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(scene.root + "/real/job")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  REQUIRE(names == std::vector<std::string>{".libckpt", "latest", "step-000000002"});
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}, {2, {}}};
  REQUIRE(scene.run(storage::store_timelines(site, timelines, 1)).has_value());
  const auto found = scene.run(
      test::find_checkpoint(storage::Site(*scene.files, *scene.clock, scene.root + "/link/job")));
  REQUIRE(found.has_value());
  REQUIRE(found->manifest->at == step_id(2, 2));
  const auto by_name = scene.run(test::find_checkpoint(
      storage::Site(*scene.files, *scene.clock, scene.root + "/link/job/step-000000002/")));
  REQUIRE(by_name.has_value());
}

// No file grows beyond it. A write that would is cut short there, and the next one fails.
class SizeLimit {
 public:
  explicit SizeLimit(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~SizeLimit() {
    (void)::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

void check_short_writes(std::unique_ptr<os::FileSystem> made) {
  DiskScene scene(std::move(made));
  const std::string path = scene.root + "/file";
  constexpr std::uint64_t limit = 4 * MiB + 8 * KiB;
  const std::vector<MadeShard> shards = large_shards(step_id(1));
  const auto bytes = std::span(*shards.front().bytes).first(9 * MiB);
  auto file = scene.run(scene.files->create(path, os::Caching::direct));
  REQUIRE(file);
  {
    const SizeLimit limited(limit);
    const Status written = scene.run((*file)->write_at(MiB, bytes));
    REQUIRE_FALSE(written);
    CHECK(written.error().cause().value() == EFBIG);
  }
  CHECK(std::filesystem::file_size(path) == limit);  // The cut-off part was tried once more.
  REQUIRE(scene.run((*file)->write_at(MiB, bytes)));
  std::vector<std::byte> found(bytes.size());
  REQUIRE(scene.run((*file)->close()));
  auto opened = scene.run(scene.files->open_read(path, os::Caching::direct));
  REQUIRE(opened);
  REQUIRE(scene.run((*opened)->read_at(MiB, found)));
  CHECK(std::ranges::equal(found, bytes));
  REQUIRE(scene.run((*opened)->close()));
}

void check_limited_save(std::unique_ptr<os::FileSystem> made) {
  DiskScene scene(std::move(made));
  const storage::Site site(*scene.files, *scene.clock, scene.root + "/job");
  storage::RunOrder order;
  order.job = "job";
  order.fresh_run = test_run;
  order.attempt = 1;
  REQUIRE(scene.run(storage::open_run_directory(site, order)));
  {
    const SizeLimit limited(4 * MiB + 8 * KiB);
    const auto saved = scene.run(save(site, large_shards(step_id(1)), 2));
    REQUIRE_FALSE(saved);
    CHECK(saved.error().cause().value() == EFBIG);
  }
  const auto saved = scene.run(save(site, large_shards(step_id(1)), 3));
  REQUIRE((saved ? "" : saved.error().message()) == "");
  const auto report = scene.run(storage::verify_checkpoint(*scene.files, site.at(saved->name)));
  REQUIRE(report);
  CHECK(report->is_good());
}

}  // namespace

TEST_CASE("disk: a write that is cut short goes on where it stopped, and fails where nothing goes",
          "[unit][storage]") {
  check_short_writes(os::make_file_system());
  check_short_writes(os::make_pool_file_system());
}
TEST_CASE("disk: a save that a limit of the system ends leaves nothing in the way",
          "[unit][storage]") {
  check_limited_save(os::make_file_system());
  check_limited_save(os::make_pool_file_system());
}

TEST_CASE("disk: a job's life with io_uring, or what this machine has instead", "[unit][storage]") {
  check_round_trip(os::make_file_system());
}
TEST_CASE("disk: a job's life on threads", "[unit][storage]") {
  check_round_trip(os::make_pool_file_system());
}

}  // namespace ckpt::test
