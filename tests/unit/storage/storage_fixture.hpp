// StorageFixture: a job's directory on a disk in memory, and a save as a node does it.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/run_directory.hpp"
#include "support/fake_clock.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "unit/storage/step_maker.hpp"

namespace ckpt::test {

// Far above the operations of one protocol on a disk.
inline constexpr std::uint64_t operations_max = 500;

class StorageFixture {
 public:
  explicit StorageFixture(std::uint64_t seed = 1) : disk(seed) { disk.put_directory("/scratch"); }

  template <class T>
  Result<T> run(Task<T> task) {
    return finish(clock, start(context, std::move(task)));
  }
  void open() {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test_run;
    order.attempt = ++attempts;
    const auto marker = run(storage::open_run_directory(site, order));
    REQUIRE((marker ? "" : marker.error().message()) == "");
  }
  Result<storage::PublishOutcome> try_save(format::StepId at) {
    return run(save(site, made_ranks(at), ++attempts));
  }
  void must_save(format::StepId at) {
    const auto published = try_save(at);
    REQUIRE((published ? "" : published.error().message()) == "");
  }
  // The order to publish of the last save.
  storage::PublishOrder order_of_last(format::StepId at) const {
    storage::PublishOrder order;
    order.work_name = storage::work_directory_name(at, attempts);
    order.job = "job";
    order.run = test_run;
    order.at = at;
    order.world_size = world_size;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      order.digests.push_back(format::digest_of(*make_rank(at, rank).record));
    return order;
  }
  Result<storage::Catalog> try_catalog() {
    storage::CatalogOptions options;
    options.run = test_run;
    return run(storage::read_catalog(site, options));
  }
  storage::Catalog catalog() {
    auto found = try_catalog();
    REQUIRE((found ? "" : found.error().message()) == "");
    return std::move(found).value();
  }
  // The steps that are there, each of them read whole and compared with what was saved.
  std::vector<format::StepId> whole_steps() {
    std::vector<format::StepId> steps;
    for (const storage::Checkpoint& checkpoint : catalog().checkpoints) {
      const Status content = run(check_content(site, checkpoint));
      REQUIRE((content ? "" : content.error().message()) == "");
      steps.push_back(checkpoint.at);
    }
    return steps;
  }
  Result<std::vector<storage::Checkpoint>> retain(std::uint32_t max_ckpt_num) {
    storage::RetentionOrder order;
    order.run = test_run;
    order.rule.max_ckpt_num = max_ckpt_num;
    CKPT_TRY(storage::Catalog listed, try_catalog());
    return run(storage::apply_retention(site, order, listed));
  }
  void discard_stale() {
    const auto removed = run(storage::discard_stale(site, {}));
    REQUIRE((removed ? "" : removed.error().message()) == "");
  }
  // Names below the job's directory that no published checkpoint and no file of the run explains.
  std::vector<std::string> leftovers() {
    std::vector<std::string> found;
    for (const std::string& path : disk.tree()) {
      const bool is_hidden = path.find("/.step-") != std::string::npos ||
                             path.find("/.latest.") != std::string::npos ||
                             path.find(".part.t") != std::string::npos ||
                             path.find(".json.") != std::string::npos;
      if (is_hidden) found.push_back(path);
    }
    return found;
  }

  asio::io_context context;
  FakeClock clock{context};
  MemoryDisk disk;
  MemoryFileSystem files{disk};
  storage::Site site{files, clock, "/scratch/job"};
  std::uint64_t attempts = 0;
};

}  // namespace ckpt::test
