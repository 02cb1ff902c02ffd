// StorageFixture: a job's directory on a disk in memory, and a save as a node does it.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "storage/catalog.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"
#include "support/checkpoint_maker.hpp"
#include "support/fake_clock.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"

namespace ckpt::test {

inline constexpr std::uint32_t world_size = 2;
inline constexpr format::RunId test_run{1, 2};

inline format::StepId step_id(std::uint64_t step, std::uint64_t timeline = 1) {
  format::StepId at;
  at.step = Step{step};
  at.timeline = timeline;
  return at;
}

inline MadeShard make_rank(format::StepId at, std::uint32_t rank, format::RunId run = test_run) {
  ShardWish wish;
  wish.run = run;
  wish.at = at;
  wish.rank = rank;
  wish.world_size = world_size;
  // Made once: the crash suite needs the same few shards thousands of times.
  static std::map<std::tuple<format::StepId, std::uint32_t, format::RunId>, MadeShard> made;
  const auto [found, is_new] = made.try_emplace({at, rank, run});
  if (is_new) found->second = make_shard(wish);
  return found->second;
}

inline storage::ShardToWrite source_of(
    const MadeShard& shard, std::optional<storage::Compression> compression = std::nullopt) {
  return storage::ShardToWrite{shard.record, shard.slot(), 0, compression};
}

// All that a coordinator and the writers do for one step.
inline Task<storage::PublishedStep> save(storage::Site site, std::vector<MadeShard> shards,
                                         std::uint64_t attempt,
                                         std::optional<storage::Compression> compression = {}) {
  storage::PublishOrder order;
  const format::ShardRecord& first = *shards.front().record;
  order.job = first.job;
  order.run = first.run;
  order.at = first.id.at;
  order.world_size = first.world_size;
  CKPT_CO_TRY(order.work_name, co_await storage::make_work_directory(site, order.at, attempt));
  for (const MadeShard& shard : shards) {
    const std::string path = site.at(order.work_name);
    const storage::TransferHooks hooks;
    CKPT_CO_TRY(const auto flushed, co_await storage::write_shard(
                                        site.files(), source_of(shard, compression), path, hooks));
    order.digests.push_back(flushed.digest);
  }
  auto published = co_await storage::publish(site, order);
  co_return published;
}

// Every byte of the checkpoint is that of the shards made for `at`.
inline Task<void> check_content(storage::Site site, storage::Checkpoint checkpoint) {
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest(site, checkpoint.name));
  for (std::uint32_t rank = 0; rank < checkpoint.world_size; ++rank) {
    const MadeShard expected = make_rank(checkpoint.at, rank);
    const std::string path = site.at(checkpoint.name);
    CKPT_CO_TRY(const auto record,
                co_await storage::read_record(site.files(), path, manifest, rank));
    if (format::digest_of(*record) != format::digest_of(*expected.record))
      co_return fail(Errc::corruption, "another record than was saved");
    std::vector<std::byte> target(record->bytes, std::byte{0xee});
    const storage::TransferHooks hooks;
    CKPT_CO_CHECK(co_await storage::read_shard(site.files(), storage::ShardPlace(path), record,
                                               target, hooks));
    if (std::memcmp(target.data(), expected.bytes->data(), target.size()) != 0) {
      co_return fail(Errc::corruption, "restored bytes that were never saved");
    }
  }
  co_return Status();
}

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
  Result<storage::PublishedStep> try_save(format::StepId at) {
    std::vector<MadeShard> shards;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) shards.push_back(make_rank(at, rank));
    return run(save(site, shards, ++attempts));
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
