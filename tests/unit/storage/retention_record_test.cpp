// Goal:   what a job keeps is found again by tools, and a record of something else is not taken.
// Method: a directory in memory; records are written, replaced, damaged.
#include "storage/retention_record.hpp"

#include "storage/step_directory.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

class RecordScene : public StorageFixture {
 public:
  RecordScene() { open(); }
  void record(storage::RetentionRule kept, format::RunId id = test_run) {
    storage::RetentionRecord record;
    record.run = id;
    record.rule = std::move(kept);
    record.attempt = ++attempts;
    const Status done = run(storage::record_retention(site, std::move(record)));
    REQUIRE((done ? "" : done.error().message()) == "");
  }
  std::optional<storage::RetentionRule> recorded() {
    auto found = run(storage::load_retention(site, test_run));
    REQUIRE((found ? "" : found.error().message()) == "");
    return *std::move(found);
  }
  bool is_written() { return run(files.status(site.at(storage::retention_name))).has_value(); }

  const storage::RetentionRule rule{3, {{1000, 10000}, {5000, {}}}, {2, "loss", true}};
};

}  // namespace

TEST_CASE_METHOD(RecordScene, "retention record: a rule comes back, and a changed one replaces it",
                 "[unit][storage]") {
  CHECK_FALSE(recorded().has_value());
  record(storage::RetentionRule());  // Keeps everything.
  CHECK_FALSE(is_written());
  record(rule);
  CHECK(recorded() == rule);
  storage::RetentionRule other = rule;
  other.best.count = 0;
  record(other);
  CHECK(recorded() == other);
  record(storage::RetentionRule());
  CHECK(recorded() == storage::RetentionRule());
  CHECK(leftovers().empty());
}

TEST_CASE_METHOD(RecordScene, "retention record: one of another run is none", "[unit][storage]") {
  record(rule, {77, 78});
  CHECK(is_written());
  CHECK_FALSE(recorded().has_value());
}

TEST_CASE_METHOD(RecordScene, "retention record: a damaged one is an error, and is replaced",
                 "[unit][storage]") {
  record(rule);
  std::vector<std::byte> nonsense(20);
  REQUIRE(run(files.remove_file(site.at(storage::retention_name))));
  REQUIRE(run(files.write_small(site.at(storage::retention_name), std::move(nonsense))));
  CHECK(run(storage::load_retention(site, test_run)).error().code() == Errc::corruption);
  record(rule);
  CHECK(recorded() == rule);
}

}  // namespace ckpt::test
