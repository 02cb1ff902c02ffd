// How a step in memory is published elsewhere:
//   1. The target gets the marker of the run, or has it already.
//   2. A checkpoint of this name there must be the same step; then nothing is left to do.
//   3. Each rank's Chunks are read, compared with their checksums and written; then its part.
//   4. The target gets the job's history, and the step is published as a flush publishes one.
#include "cli/memory_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/log.hpp"
#include "node/lent_step.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/chunk_map.hpp"
#include "storage/copy_target.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::cli {

namespace {

struct WritingRank {
  const format::ShardRecord& record;
  const std::vector<format::Extent> members;
  std::vector<std::unique_ptr<os::File>> opened;  // By member.
  format::ShardPart part;
};

Task<void> write_chunk(WritingRank& rank, std::size_t index, std::span<const std::byte> bytes) {
  const format::Extent chunk = rank.record.chunk(index);
  const auto segments = storage::segments_of(chunk, rank.members);
  for (const storage::FileSegment& segment : segments) {
    if (!segment.member) continue;
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    Crc32& crc = rank.part.member_crcs[*segment.member];
    crc = crc32(part, crc);
    CKPT_CO_CHECK(co_await rank.opened[*segment.member]->write_at(segment.file_offset, part));
  }
  co_return Status();
}

// These few Chunks together are one answer of the daemon.
Task<void> copy_chunks(WritingRank& rank, StoredStep& step,
                       std::shared_ptr<const format::ShardRecord> record,
                       std::vector<std::size_t> chunks, const MemoryCopyOrder& order) {
  std::map<std::size_t, std::vector<std::byte>> read;
  gather::ChunkSink sink;
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    read[index].assign(bytes.begin(), bytes.end());
  };
  const storage::TransferHooks hooks;
  CKPT_CO_CHECK(co_await step.shards->read(record, std::move(chunks), std::move(sink), hooks));
  for (const auto& [index, bytes] : read) {
    CKPT_CO_CHECK(co_await write_chunk(rank, index, bytes));
    if (order.done) order.done(bytes.size());
  }
  co_return Status();
}

// Step 3. `directory` is the attempt's.
Task<void> write_rank(storage::Site target, std::string directory, StoredStep& step,
                      std::uint32_t number_of_rank, const MemoryCopyOrder& order) {
  CKPT_CO_TRY(const auto record, co_await step.shards->whole_record(number_of_rank));
  WritingRank rank{*record, format::member_extents(*record), {}, {}};
  rank.part.record = *record;
  rank.part.member_crcs.assign(rank.members.size(), 0);
  for (std::size_t member = 0; member < rank.members.size(); ++member) {
    const std::string path = os::join(directory, record->layout.members[member].file_name);
    CKPT_CO_TRY(auto file, co_await target.files().create(path, os::Caching::direct));
    CKPT_CO_CHECK(co_await file->allocate(rank.members[member].bytes));
    rank.opened.push_back(std::move(file));
  }
  const std::size_t count = record->chunk_crcs.size();
  for (std::size_t begin = 0; begin < count; begin += node::lent_chunks_max) {
    if (order.is_cancelled && order.is_cancelled())
      co_return fail(Errc::cancelled, "copy: it was interrupted");
    std::vector<std::size_t> some(std::min(node::lent_chunks_max, count - begin));
    std::iota(some.begin(), some.end(), begin);
    CKPT_CO_CHECK(co_await copy_chunks(rank, step, record, std::move(some), order));
  }
  for (const auto& file : rank.opened) {
    CKPT_CO_CHECK(co_await file->sync_data());
    CKPT_CO_CHECK(co_await file->close());
  }
  const std::string path = os::join(directory, format::part_name(number_of_rank));
  Status written = co_await target.files().write_small(path, format::encode(rank.part));
  co_return written;
}

Task<void> write_ranks(storage::Site target, std::string directory, StoredStep& step,
                       const MemoryCopyOrder& order) {
  for (std::uint32_t rank = 0; rank < step.manifest->world_size; ++rank)
    CKPT_CO_CHECK(co_await write_rank(target, directory, step, rank, order));
  co_return Status();
}

// Step 2. False: there is none.
Task<bool> is_copied_already(storage::Site target, const StoredStep& step, std::string name) {
  const auto there = co_await storage::read_manifest(target, name);
  if (!there && there.error().code() == Errc::not_found) co_return false;
  if (there) {
    const auto one = storage::describe(**there, name);
    const auto other = storage::describe(*step.manifest, name);
    if (one.run == other.run && one.at == other.at && one.digests == other.digests) co_return true;
  }
  co_return fail(Errc::invalid_argument,
                 fmt::format("copy {} to {}: another checkpoint is there, or something else; it is "
                             "left as it is",
                             step.directory, os::display(target.at(name))));
}

}  // namespace

Task<storage::Copied> copy_from_memory(storage::Site target, std::shared_ptr<StoredStep> step,
                                       MemoryCopyOrder order) {
  storage::CopyOrder prepared;
  prepared.manifest = step->manifest;
  prepared.timelines = std::make_shared<const format::Timelines>(step->memory->timelines());
  prepared.attempt = order.attempt;
  CKPT_CO_CHECK(co_await storage::prepare_target(target, prepared));
  storage::Copied copied;
  copied.name = storage::step_directory_name(step->manifest->at.step);
  CKPT_CO_TRY(copied.was_there, co_await is_copied_already(target, *step, copied.name));
  if (copied.was_there) {
    CKPT_CO_CHECK(co_await storage::add_history(target, prepared));
    co_return copied;
  }

  storage::PublishOrder publish;
  publish.job = step->manifest->job;
  publish.run = step->manifest->run;
  publish.at = step->manifest->at;
  publish.world_size = step->manifest->world_size;
  for (const format::ManifestShard& shard : step->manifest->shards)
    publish.digests.push_back(shard.record_digest);
  publish.members = step->manifest->members;
  publish.nodes = step->manifest->nodes;
  CKPT_CO_TRY(publish.work_name,
              co_await storage::make_work_directory(target, publish.at, order.attempt));
  const std::string work_name = publish.work_name;
  Status done =
      co_await write_ranks(target, storage::attempt_path(target, work_name), *step, order);
  if (done) {  // Not before: the history alone may abandon all that is there.
    const auto added = co_await storage::add_history(target, prepared);
    if (!added) done = fail(Error(added.error()));
  }
  if (done) {
    const auto published = co_await storage::publish(target, std::move(publish));
    if (published) co_return copied;
    done = fail(Error(published.error()));
  }
  const Status discarded =
      co_await storage::discard_work_directory(target, work_name, "its copy failed");
  if (!discarded) log_warning("{} is left behind: {}", work_name, discarded.error().message());
  co_return fail(std::move(done).error());
}

}  // namespace ckpt::cli
