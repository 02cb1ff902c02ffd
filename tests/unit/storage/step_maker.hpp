// StepMaker: steps of a job of two ranks, written, published, copied and compared; on a disk or in
// a bucket.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/copy.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"
#include "storage/publish.hpp"
#include "storage/step_directory.hpp"
#include "support/checkpoint_maker.hpp"

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

inline std::vector<MadeShard> made_ranks(format::StepId at) {
  std::vector<MadeShard> shards;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) shards.push_back(make_rank(at, rank));
  return shards;
}

// Writes the shards as their nodes do, on a disk or into a bucket, and returns the order to publish
// them. `first_turn`: of the part of the first rank.
inline Task<storage::PublishOrder> write_step(storage::Site site, std::vector<MadeShard> shards,
                                              std::uint64_t attempt,
                                              std::optional<storage::Compression> compression = {},
                                              std::uint32_t first_turn = 0) {
  storage::PublishOrder order;
  const format::ShardRecord& first = *shards.front().record;
  order.job = first.job;
  order.run = first.run;
  order.at = first.id.at;
  order.world_size = first.world_size;
  CKPT_CO_TRY(order.work_name, co_await storage::make_work_directory(site, order.at, attempt));
  const std::string path = storage::attempt_path(site, order.work_name);
  for (const MadeShard& shard : shards) {
    storage::ShardToWrite source = source_of(shard, compression);
    source.turn = order.digests.empty() ? first_turn : 0;
    if (first_turn != 0) order.turns.push_back(source.turn);
    const storage::TransferHooks hooks;
    CKPT_CO_TRY(const auto flushed,
                co_await storage::write_shard(site.files(), source, path, hooks));
    order.digests.push_back(flushed.digest);
  }
  co_return order;
}

// All that a coordinator and the writers do for one step.
inline Task<storage::PublishOutcome> save(storage::Site site, std::vector<MadeShard> shards,
                                          std::uint64_t attempt,
                                          std::optional<storage::Compression> compression = {}) {
  CKPT_CO_TRY(auto order, co_await write_step(site, std::move(shards), attempt, compression));
  auto published = co_await storage::publish(site, std::move(order));
  co_return published;
}

// A hook before a transfer that lets it go on.
inline Task<void> go_on() {
  co_return Status();
}

// CopyCounts: the bytes of a copy, and of those that were there before it.
struct CopyCounts {
  std::uint64_t copied = 0, found = 0;
};

// An order to copy the step from `source`. `counts` outlives it.
inline storage::CopyOrder copy_order(const storage::Site& source,
                                     std::shared_ptr<const format::Manifest> manifest,
                                     const format::Timelines& timelines, std::uint64_t attempt,
                                     CopyCounts& counts) {
  storage::CopyOrder order;
  const std::string name = storage::step_directory_name(manifest->at.step);
  order.sources.push_back(storage::OpenStep::known(source, name, manifest));
  order.manifest = std::move(manifest);
  order.timelines = std::make_shared<const format::Timelines>(timelines);
  order.attempt = attempt;
  order.done = [&counts](std::uint64_t bytes, bool was_there) {
    (was_there ? counts.found : counts.copied) += bytes;
  };
  return order;
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
    const storage::ShardPlace place = storage::shard_place(path, manifest->shards.at(rank));
    CKPT_CO_CHECK(co_await storage::read_shard(site.files(), place, record, target, hooks));
    if (std::memcmp(target.data(), expected.bytes->data(), target.size()) != 0) {
      co_return fail(Errc::corruption, "restored bytes that were never saved");
    }
  }
  co_return Status();
}

}  // namespace ckpt::test
