// CopyScene: a disk and two servers in memory, one of them Google's, and copies among them.
#pragma once

#include <catch2/catch.hpp>

#include "bucket/any_file_system.hpp"
#include "support/found_checkpoint.hpp"
#include "unit/bucket/bucket_fixture.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

class CopyInBucket : public BucketFixture {
 public:
  CopyInBucket() {
    disk.put_directory("/scratch");
    google.is_google = true;
  }

  std::optional<storage::Compression> compression;  // Of the saved steps.

  void save_source(std::vector<std::uint64_t> steps) {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test_run;
    order.attempt = ++attempts;
    must(storage::open_run_directory(source, order));
    timelines.run = test_run;
    timelines.history = {{1, {}}};
    must(storage::store_timelines(source, timelines, 1));
    for (const std::uint64_t step : steps) must(save_step(step_id(step)));
  }
  Task<storage::PublishOutcome> save_step(format::StepId at) {
    return save(source, made_ranks(at), ++attempts, compression);
  }
  storage::CopyOrder order_of(std::uint64_t step) {
    auto manifest = must(storage::read_manifest(source, storage::step_directory_name(Step{step})));
    return copy_order(source, std::move(manifest), timelines, ++attempts, counts);
  }
  Result<storage::Copied> try_copy(std::uint64_t step) {
    counts = {};
    return run(storage::copy_checkpoint(target, order_of(step)));
  }
  storage::Copied must_copy(std::uint64_t step) {
    auto copied = try_copy(step);
    REQUIRE((copied ? "" : copied.error().message()) == "");
    return *copied;
  }
  // As a restore finds it; every byte is read. 0: nothing is there.
  std::uint64_t newest_in(const storage::Site& site) {
    const auto found = run(test::find_checkpoint(storage::Site(*all, clock, site.directory())));
    if (!found) {
      CHECK(found.error().code() == Errc::not_found);
      return 0;
    }
    CHECK(found->passed_over.empty());
    const auto report = must(storage::verify_checkpoint(*all, found->directory));
    CHECK(report.is_good());
    CHECK(report.foreign.empty());
    return number(found->manifest->at.step);
  }
  std::string text_at(const storage::Site& site, const std::string& name) {
    return text_of(must(all->read_small(site.at(name), std::uint64_t{1} << 20)));
  }
  // Folders of attempts at this step, in the target.
  std::size_t attempts_at(std::uint64_t step) {
    const std::string directory = target.at(storage::step_directory_name(Step{step}));
    std::size_t count = 0;
    for (const os::DirectoryEntry& entry : must(all->list(directory)))
      count += entry.kind == os::EntryKind::directory ? 1 : 0;
    return count;
  }

  MemoryDisk disk{1};
  MemoryServer google;
  std::unique_ptr<os::FileSystem> all = bucket::with_buckets(
      std::make_unique<MemoryFileSystem>(disk),
      [this](bucket::Scheme scheme) -> Result<std::unique_ptr<bucket::BucketFileSystem>> {
        const bool is_google = scheme == bucket::Scheme::gs;
        return std::make_unique<bucket::BucketFileSystem>(
            client_of(is_google ? google : server, clock, scheme));
      });
  storage::Site source{*all, clock, "/scratch/job"};
  storage::Site target{*all, clock, "s3://bucket/copy"};
  format::Timelines timelines;
  std::uint64_t attempts = 0;
  CopyCounts counts;
};

}  // namespace ckpt::test
