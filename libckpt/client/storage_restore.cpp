#include "client/storage_restore.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/units.hpp"
#include "client/blocking.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"
#include "storage/run_catalog.hpp"

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

Status allocate(LoadedShard& loaded) {
  const std::uint64_t bytes = align_up(loaded.record->bytes, page_bytes);
  loaded.memory.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, bytes)));
  if (loaded.memory) return {};
  return fail(Errc::exhausted,
              fmt::format("restore from {}: no memory for its {} bytes", loaded.directory, bytes));
}

Task<LoadedShard> load(os::FileSystem& files, Clock& clock, LoadRequest request) {
  CKPT_CO_TRY(const auto found, co_await storage::find_checkpoint(files, clock, request.path));
  if (request.world_size && *request.world_size != found.manifest->world_size)
    co_return fail(Errc::unsupported,
                   fmt::format("restore from {}: it was saved by {} ranks and there are {} now",
                               found.directory, found.manifest->world_size, *request.world_size));
  LoadedShard loaded;
  loaded.directory = found.directory;
  CKPT_CO_TRY(loaded.record,
              co_await storage::read_record(files, found.directory, found.manifest, request.rank));
  CKPT_CO_CHECK(allocate(loaded));
  storage::TransferHooks hooks;
  hooks.before_transfer = [deadline = request.deadline, teller = request.teller](std::uint64_t) {
    return check_going_on(deadline, teller);
  };
  if (RestoreTeller* const teller = request.teller; teller != nullptr) {
    teller->begin(RestoreProgress::Phase::filling, "storage", loaded.record->bytes);
    hooks.verified = [teller](std::uint64_t bytes) { teller->done(bytes); };
  }
  const std::span<std::byte> target(loaded.memory.get(), loaded.record->bytes);
  CKPT_CO_CHECK(co_await storage::read_shard(files, found.directory, loaded.record, target,
                                             std::move(hooks)));
  co_return std::move(loaded);
}

}  // namespace

Result<LoadedShard> load_shard(LoadRequest request) {
  return run_blocking<LoadedShard>(
      [&](os::FileSystem& files, Clock& clock) { return load(files, clock, std::move(request)); });
}

}  // namespace ckpt::client
