#include "client/storage_restore.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "client/blocking.hpp"
#include "gather/own_shard.hpp"
#include "gather/stored_shards.hpp"
#include "gather/wanted_shard.hpp"
#include "storage/open_step.hpp"
#include "storage/search.hpp"

namespace ckpt::client {

namespace {

using Instant = std::chrono::steady_clock::time_point;

Task<void> check_going_on(Instant deadline, const RestoreTeller* teller) {
  if (std::chrono::steady_clock::now() >= deadline)
    co_return fail(Errc::unavailable, "the deadline for reading it passed");
  if (teller != nullptr && teller->is_given_up())
    co_return fail(Errc::unavailable, "its watch has given it up");
  co_return Status();
}

Status allocate(LoadedShard& loaded, std::uint64_t size) {
  const std::uint64_t bytes = align_up(size, page_bytes);
  loaded.memory.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, bytes)));
  if (loaded.memory) return {};
  return fail(Errc::exhausted,
              fmt::format("restore from {}: no memory for its {} bytes", loaded.directory, bytes));
}

storage::TransferHooks hooks_of(const LoadRequest& request, std::uint64_t bytes) {
  storage::TransferHooks hooks;
  hooks.before_transfer = [deadline = request.deadline, teller = request.teller](std::uint64_t) {
    return check_going_on(deadline, teller);
  };
  if (RestoreTeller* const teller = request.teller; teller != nullptr) {
    teller->begin(RestoreProgress::Phase::filling, "storage", bytes);
    hooks.verified = [teller](std::uint64_t done) { teller->done(done); };
  }
  return hooks;
}

Task<LoadedShard> load_as_saved(storage::OpenStep step,
                                std::shared_ptr<const format::ShardRecord> record,
                                const LoadRequest& request) {
  LoadedShard loaded{step.place(), {}, std::move(record), {}, step.manifest()->world_size};
  const std::uint64_t bytes = loaded.record->bytes;
  CKPT_CO_CHECK(allocate(loaded, bytes));
  const std::span<std::byte> target(loaded.memory.get(), bytes);
  storage::TransferHooks hooks = hooks_of(request, bytes);
  CKPT_CO_TRY(const auto shard, storage::shard_of(step, loaded.record->id.rank));
  CKPT_CO_CHECK(co_await storage::read_shard(shard, loaded.record, target, std::move(hooks)));
  co_return std::move(loaded);
}

Task<std::shared_ptr<gather::ShapedShard>> shape_shared(gather::ShardSource& shards,
                                                        gather::ReaderRank reader,
                                                        std::vector<format::TensorSpec> wanted) {
  gather::ShardWish wish{std::move(wanted), /*joins_shards=*/false};
  CKPT_CO_TRY(auto shaped, co_await gather::shape_shard(shards, reader, std::move(wish)));
  co_return std::make_shared<gather::ShapedShard>(std::move(shaped));
}

Task<LoadedShard> load_wanted(storage::OpenStep step, const LoadRequest& request) {
  const gather::ReaderRank reader{request.rank, request.wanted->world_size};
  gather::StoredShards shards(step);
  CKPT_CO_TRY(const auto shaped, co_await shape_shared(shards, reader, request.wanted->tensors));
  format::ShardRecord& record = shaped->record;
  LoadedShard loaded{step.place(),
                     fmt::format("put together from the pieces of {} ranks, with the blobs of rank "
                                 "{}",
                                 shards.shard_count(), gather::rank_of_blobs(shards, reader)),
                     {shaped, &record},
                     {},
                     shards.shard_count()};
  CKPT_CO_CHECK(allocate(loaded, record.bytes));
  const std::span<std::byte> target(loaded.memory.get(), record.bytes);
  storage::TransferHooks hooks = hooks_of(request, record.bytes);
  CKPT_CO_CHECK(co_await gather::fill_shard(shards, reader, *shaped, target, std::move(hooks)));
  co_return std::move(loaded);
}

bool has_pieces(const auto& tensors) {
  return std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.piece.has_value(); });
}

// A shard without pieces is compared with what the trainer has as a whole, so that nothing in it is
// left out unnoticed. So is one that the trainer would save in the same way. Other ranks' shards
// may have the tensors that it lacks.
Result<bool> is_wanted_as_saved(const format::ShardRecord& record,
                                const LoadRequest::Wanted& wanted) {
  if (!has_pieces(record.layout.tensors) && !has_pieces(wanted.tensors)) {
    std::vector<std::string_view> names;
    for (const format::TensorSpec& tensor : wanted.tensors) names.push_back(tensor.name);
    return !gather::lacks_names(record.layout, names);
  }
  CKPT_TRY(const format::Layout layout,
           format::make_layout(wanted.tensors, record.id.rank, record.layout.blob_capacity));
  return format::fingerprint(layout) == record.model;
}

Task<LoadedShard> load_found(storage::OpenStep step, const LoadRequest& request) {
  if (request.wanted && request.wanted->world_size != step.manifest()->world_size) {
    auto loaded = co_await load_wanted(step, request);
    co_return loaded;
  }
  CKPT_CO_TRY(auto record, co_await storage::read_record(step, request.rank));
  if (request.wanted) {
    CKPT_CO_TRY(const bool is_as_saved, is_wanted_as_saved(*record, *request.wanted));
    if (!is_as_saved) {
      auto loaded = co_await load_wanted(step, request);
      co_return loaded;
    }
  }
  auto loaded = co_await load_as_saved(step, std::move(record), request);
  co_return loaded;
}

Task<LoadedShard> load_at(storage::Site site, const LoadRequest& request) {
  CKPT_CO_TRY(const auto step, co_await storage::OpenStep::at(std::move(site)));
  auto loaded = co_await load_found(step, request);
  co_return loaded;
}

// Whether an older one may do instead. Only a damaged one is passed over, and only by a reader that
// is alone: several would take different steps, as each reads other files.
bool may_pass_over(const LoadRequest& request, const Error& error) {
  return request.is_alone && error.code() == Errc::corruption;
}

Task<LoadedShard> load(os::FileSystem& files, Clock& clock, LoadRequest request) {
  CKPT_CO_TRY(storage::Candidates candidates,
              co_await storage::find_candidates(storage::Site(files, clock, request.path)));
  std::optional<Error> first;
  for (std::size_t index = 0; index < candidates.directories.size(); ++index) {
    const std::string& directory = candidates.directories[index];
    const storage::Site site(files, clock, directory);
    auto loaded = co_await load_at(site, request);
    if (loaded) {
      if (!candidates.passed_over.empty())
        log_warning("restore from {}: takes {}; {}", request.path, os::display(directory),
                    storage::describe_passed_over(candidates.passed_over));
      co_return loaded;
    }
    if (!first) first.emplace(loaded.error());
    // In whichever place each rank reads it, all read the same step.
    const bool has_copy = candidates.copies.contains(index + 1);
    if (!has_copy && !may_pass_over(request, loaded.error())) co_return fail(std::move(*first));
    candidates.passed_over.push_back(
        fmt::format("{}: {}", os::file_name(directory), loaded.error().text()));
  }
  CKPT_ASSERT(first.has_value());
  co_return fail(std::move(*first));
}

}  // namespace

Result<LoadedShard> load_shard(LoadRequest request) {
  return run_blocking<LoadedShard>(
      [&](os::FileSystem& files, Clock& clock) { return load(files, clock, std::move(request)); });
}

}  // namespace ckpt::client
