// StoreUnderTest: a place for checkpoints on any disk or in any bucket, with two daemons at it.
//
// The first daemon may die at a chosen call; the second one never does, and finds what the first
// one has left. They share nothing but the place.
//
// Threads: one.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contract/bucket_under_test.hpp"
#include "contract/file_system_subjects.hpp"
#include "storage/left_attempts.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"
#include "support/failing_file_system.hpp"
#include "support/remove_named.hpp"
#include "unit/storage/step_maker.hpp"

namespace ckpt::test {

class StoreUnderTest {
 public:
  // Null where this machine does not have it.
  static std::unique_ptr<StoreUnderTest> make(const std::string& name) {
    const bool is_real = name == "bucket of a server";
    if (is_real && !BucketUnderTest::is_there(WhichBucket::real)) return nullptr;
    FileSystemSubject disk;
    if (!name.starts_with("bucket")) {
      disk = make_file_system_subject(name);
      if (!disk) return nullptr;
    }
    WhichBucket which = WhichBucket::amazon_in_memory;
    if (name == "bucket of Google") which = WhichBucket::google_in_memory;
    if (is_real) which = WhichBucket::real;
    return std::unique_ptr<StoreUnderTest>(new StoreUnderTest(std::move(disk), which));
  }

  template <class T>
  Result<T> run(Task<T> task) {
    return bucket_.run(std::move(task));
  }
  template <class T>
  T must(Task<T> task) {
    return bucket_.must(std::move(task));
  }

  FailingFileSystem& first() { return *first_; }
  storage::Site site() { return {*first_, bucket_.clock_in_use(), directory_}; }
  storage::Site site_of_second() { return {*second_, bucket_.clock_in_use(), directory_}; }
  bool is_bucket() const { return disk_ == nullptr; }
  // A call there takes milliseconds, so that not each one can be the last of a daemon.
  bool is_slow() const { return is_slow_; }

  std::uint64_t next_attempt() { return ++attempts_; }

  // The calls of a daemon, by the name of what it does.
  storage::RunOrder run_order(const std::string& job = "job") {
    storage::RunOrder order;
    order.job = job;
    order.fresh_run = test_run;
    order.attempt = next_attempt();
    return order;
  }
  void open() { must(storage::open_run_directory(site(), run_order())); }
  storage::PublishOrder must_write(storage::Site at, format::StepId step) {
    return must(write_step(at, made_ranks(step), next_attempt()));
  }
  void must_save(format::StepId step) { must(storage::publish(site(), must_write(site(), step))); }
  storage::Catalog catalog() {
    storage::CatalogOptions options;
    options.run = test_run;
    return must(storage::read_catalog(site_of_second(), options));
  }
  // As the second daemon finds them: each one is read whole and compared with what was saved.
  std::vector<format::StepId> whole_steps() {
    const storage::Catalog found = catalog();
    REQUIRE(found.rejected.empty());
    std::vector<format::StepId> steps;
    for (const storage::Checkpoint& checkpoint : found.checkpoints) {
      must(check_content(site_of_second(), checkpoint));
      steps.push_back(checkpoint.at);
    }
    return steps;
  }
  std::vector<std::string> attempts_left() {
    std::vector<std::string> names;
    for (const storage::LeftAttempt& attempt : must(storage::list_attempts(site_of_second())))
      names.push_back(attempt.name);
    return names;
  }
  std::vector<std::string> discard_all() {
    return must(storage::discard_stale(site_of_second(), storage::StaleAttempts()));
  }
  Status remove(storage::Site at, Step step, format::RunId run_id = test_run) {
    return run(remove_named(at, storage::step_directory_name(step), run_id));
  }
  std::string read(std::string_view name) {
    constexpr std::uint64_t bytes_max = 1 << 20;
    storage::Site at = site_of_second();
    return text_of(must(at.files().read_small(at.at(name), bytes_max)));
  }

 private:
  StoreUnderTest(FileSystemSubject disk, WhichBucket which)
      : bucket_(which), disk_(std::move(disk)), is_slow_(which == WhichBucket::real) {
    if (disk_) {
      first_ = std::make_unique<FailingFileSystem>(disk_->files());
      second_ = std::make_unique<FailingFileSystem>(disk_->files());
      directory_ = disk_->directory() + "/job";
      return;
    }
    first_ = std::make_unique<FailingFileSystem>(bucket_.all());
    second_bucket_ = bucket_.make_files();
    second_ = std::make_unique<FailingFileSystem>(*second_bucket_);
    directory_ = bucket_.at("job");
  }

  // Also has the executor and the clock of all of them. The disk's threads let go of it: they end
  // first.
  BucketUnderTest bucket_;
  const FileSystemSubject disk_;  // Null: the place is in the bucket.
  const bool is_slow_;
  std::unique_ptr<os::FileSystem> second_bucket_;
  std::unique_ptr<FailingFileSystem> first_;
  std::unique_ptr<FailingFileSystem> second_;
  std::string directory_;
  std::uint64_t attempts_ = 0;
};

// Each of them in turn.
inline std::unique_ptr<StoreUnderTest> some_store() {
  return StoreUnderTest::make(GENERATE(as<std::string>(), "memory", "pool", "ring", "bucket",
                                       "bucket of Google", "bucket of a server"));
}

}  // namespace ckpt::test
