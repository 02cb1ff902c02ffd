// Goal:   the catalog reads a manifest that did not change only once, and never believes what it
//         read before about one that did.
// Method: the reads are counted in the log of the disk. Then a manifest changes under its name in
//         every way there is: written over, replaced, exchanged, removed and made again, damaged
//         and mended; each time the catalog must say what is there now.
#include "storage/catalog_cache.hpp"

#include <algorithm>

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

std::string manifest_of(std::uint64_t step) {
  return "/scratch/job/" + storage::step_directory_name(Step{step}) + "/manifest.json";
}

class CacheFixture : public StorageFixture {
 public:
  storage::Catalog cached(std::optional<Step> only = std::nullopt) {
    storage::CatalogOptions options;
    options.run = test_run;
    options.only = only;
    options.cache = &cache;
    disk.clear_log();
    auto found = run(storage::read_catalog(site, options));
    REQUIRE((found ? "" : found.error().message()) == "");
    return std::move(found).value();
  }
  // The steps whose manifest was read since the log was cleared.
  std::vector<std::uint64_t> manifests_read() const {
    std::vector<std::uint64_t> steps;
    for (std::uint64_t step = 0; step < 10; ++step) {
      const std::string line = "read " + manifest_of(step);
      const auto count = std::count(disk.log().begin(), disk.log().end(), line);
      steps.insert(steps.end(), static_cast<std::size_t>(count), step);
    }
    return steps;
  }
  std::vector<format::StepId> steps_of(const storage::Catalog& catalog) const {
    std::vector<format::StepId> steps;
    for (const storage::Checkpoint& checkpoint : catalog.checkpoints)
      steps.push_back(checkpoint.at);
    return steps;
  }

  using Steps = std::vector<std::uint64_t>;
  using Ids = std::vector<format::StepId>;
  storage::CatalogCache cache;
};

}  // namespace

TEST_CASE_METHOD(CacheFixture, "catalog cache: an unchanged manifest is read once",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2, 3}) must_save(step_id(step));
  const storage::Catalog first = cached();
  CHECK(manifests_read() == Steps{1, 2, 3});
  const storage::Catalog again = cached();
  CHECK(manifests_read().empty());
  CHECK(steps_of(again) == Ids{step_id(1), step_id(2), step_id(3)});
  REQUIRE(again.checkpoints.size() == first.checkpoints.size());
  for (std::size_t index = 0; index < first.checkpoints.size(); ++index) {
    CHECK(again.checkpoints[index].digests == first.checkpoints[index].digests);
    CHECK(again.checkpoints[index].bytes == first.checkpoints[index].bytes);
    CHECK(again.checkpoints[index].name == first.checkpoints[index].name);
  }
  must_save(step_id(4));
  CHECK(cached().checkpoints.size() == 4);
  CHECK(manifests_read() == Steps{4});
}

TEST_CASE_METHOD(CacheFixture, "catalog cache: one step alone is looked at where one is asked for",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2, 3}) must_save(step_id(step));
  CHECK(steps_of(cached(Step{2})) == Ids{step_id(2)});
  CHECK(manifests_read() == Steps{2});
  const auto& log = disk.log();
  CHECK(std::none_of(log.begin(), log.end(), [](const std::string& line) {
    return line.find("step-000000001") != std::string::npos ||
           line.find("step-000000003") != std::string::npos;
  }));
  CHECK(cached(Step{7}).checkpoints.empty());
  // The cache keeps its knowledge of the others.
  CHECK(cached().checkpoints.size() == 3);
  CHECK(manifests_read() == Steps{1, 3});
  CHECK(cached(Step{2}).checkpoints.size() == 1);
  CHECK(cached().checkpoints.size() == 3);
  CHECK(manifests_read().empty());
}

TEST_CASE_METHOD(CacheFixture, "catalog cache: a manifest that changed is read again",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2}) must_save(step_id(step));
  CHECK(cached().checkpoints.size() == 2);
  const std::string path = manifest_of(1);
  const std::string content = disk.content(path);
  SECTION("replaced by a copy") {
    disk.put(path, content);
    CHECK(cached().checkpoints.size() == 2);
  }
  SECTION("replaced by another step's, which is no checkpoint here") {
    disk.put(path, disk.content(manifest_of(2)));
    const storage::Catalog found = cached();
    CHECK(steps_of(found) == Ids{step_id(2)});
    REQUIRE(found.rejected.size() == 1);
    CHECK(found.rejected.front().code == Errc::corruption);
  }
  SECTION("cut short, and mended") {
    disk.resize(path, 100);
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    CHECK(std::ranges::count(manifests_read(), 1u) >= 1);
    disk.put(path, content);
    CHECK(cached().checkpoints.size() == 2);
  }
  SECTION("the step is saved again in a later timeline") {
    must_save(step_id(1, 2));
    CHECK(steps_of(cached()) == Ids{step_id(2), step_id(1, 2)});
  }
  SECTION("removed, and made again") {
    disk.erase("/scratch/job/step-000000001");
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    CHECK(cache.size() == 1);
    must_save(step_id(1));
    CHECK(steps_of(cached()) == Ids{step_id(1), step_id(2)});
  }
  CHECK(std::ranges::count(manifests_read(), 1u) >= 1);
}

TEST_CASE_METHOD(CacheFixture, "catalog cache: damage is looked at anew each time",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2}) must_save(step_id(step));
  SECTION("of a manifest that rotted before it was read, and was mended by the medium") {
    disk.flip(manifest_of(1), 40, 2);
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    disk.flip(manifest_of(1), 40, 2);
  }
  SECTION("of a medium that failed for a while") {
    disk.set_hook([](std::string_view verb, const std::string& path) {
      return verb == "read" && path == manifest_of(1) ? EIO : 0;
    });
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    disk.set_hook({});
  }
  SECTION("of a file that was not there for a while") {
    const std::string file = "/scratch/job/step-000000001/rank-00001.safetensors";
    const std::string content = disk.content(file);
    disk.erase(file);
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    CHECK(steps_of(cached()) == Ids{step_id(2)});
    disk.put(file, content);
  }
  CHECK(steps_of(cached()) == Ids{step_id(1), step_id(2)});
}

TEST_CASE_METHOD(CacheFixture, "catalog cache: a file that goes, or shrinks, is noticed",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2}) must_save(step_id(step));
  CHECK(cached().checkpoints.size() == 2);
  const std::string file = "/scratch/job/step-000000001/rank-00000.safetensors";
  SECTION("goes") {
    disk.erase(file);
  }
  SECTION("shrinks") {
    disk.resize(file, 9);
  }
  CHECK(steps_of(cached()) == Ids{step_id(2)});
}

TEST_CASE_METHOD(CacheFixture, "catalog cache: a manifest is known only once its times are settled",
                 "[unit][storage]") {
  open();
  // From here on the disk's files have the times of the clock.
  disk.set_time(clock.wall_time());
  must_save(step_id(1));
  CHECK(cached().checkpoints.size() == 1);
  CHECK(cached().checkpoints.size() == 1);
  CHECK(manifests_read() == Steps{1});
  clock.advance(storage::CatalogCache::settled_after - std::chrono::milliseconds(1));
  CHECK(cached().checkpoints.size() == 1);
  CHECK(manifests_read() == Steps{1});
  SECTION("they are") {
    clock.advance(std::chrono::milliseconds(5));
    CHECK(cached().checkpoints.size() == 1);
    CHECK(manifests_read() == Steps{1});
    CHECK(cached().checkpoints.size() == 1);
    CHECK(manifests_read().empty());
  }
  SECTION("they lie ahead of our clock") {
    disk.set_time(clock.wall_time() + std::chrono::hours(1));
    disk.put(manifest_of(1), disk.content(manifest_of(1)));
    for (int repeats = 0; repeats < 3; ++repeats) {
      CHECK(cached().checkpoints.size() == 1);
      CHECK(manifests_read() == Steps{1});
    }
  }
}

TEST_CASE("catalog cache: it is bounded, and keeps the newest", "[unit][storage]") {
  storage::Described described;
  described.checkpoint.digests.resize(100);
  const auto entry = std::make_shared<const storage::Described>(described);
  os::FileStatus status;
  storage::CatalogCache cache(20 * (1600 + sizeof(storage::Described)));
  const auto now = storage::CatalogCache::WallTime(std::chrono::hours(1));
  const auto keep_all = [&] {
    for (std::uint64_t step = 1; step <= 50; ++step)
      cache.keep(storage::step_directory_name(Step{step}), status, now, entry);
  };
  keep_all();
  CHECK(cache.size() == 20);
  keep_all();
  CHECK(cache.size() == 20);
  CHECK(cache.find(storage::step_directory_name(Step{31}), status) != nullptr);
  CHECK(cache.find(storage::step_directory_name(Step{30}), status) == nullptr);
  cache.keep_only({storage::step_directory_name(Step{50})});
  CHECK(cache.size() == 1);
  cache.keep_only({});
  CHECK(cache.size() == 0);
}

}  // namespace ckpt::test
