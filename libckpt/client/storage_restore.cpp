#include "client/storage_restore.hpp"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "os/pool_file_system.hpp"
#include "storage/member_reader.hpp"

namespace ckpt::client {

namespace {

using Instant = std::chrono::steady_clock::time_point;

Task<void> check_deadline(Instant deadline) {
  if (std::chrono::steady_clock::now() >= deadline)
    co_return fail(Errc::unavailable, "the deadline for reading it passed");
  co_return Status();
}

Status allocate(LoadedShard& loaded) {
  const std::uint64_t bytes = align_up(loaded.record->bytes, page_bytes);
  loaded.memory.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, bytes)));
  if (loaded.memory) return {};
  return fail(Errc::exhausted, fmt::format("restore from {}: {} bytes of memory to read it into",
                                           loaded.directory, bytes));
}

Task<LoadedShard> load(os::FileSystem& files, Clock& clock, LoadRequest request) {
  CKPT_CO_TRY(const auto found, co_await storage::find_checkpoint(files, clock, request.path));
  if (request.world_size && *request.world_size != found.manifest->world_size)
    co_return fail(Errc::unsupported,
                   fmt::format("restore from {}: it was saved by {} ranks and there are {} now",
                               found.directory, found.manifest->world_size, *request.world_size));
  CKPT_CO_TRY(auto record, format::record_from(*found.manifest, request.rank));
  LoadedShard loaded;
  loaded.directory = found.directory;
  loaded.record = std::make_shared<const format::ShardRecord>(std::move(record));
  CKPT_CO_CHECK(allocate(loaded));
  storage::TransferHooks hooks;
  hooks.before_transfer = [deadline = request.deadline](std::uint64_t) {
    return check_deadline(deadline);
  };
  const std::span<std::byte> target(loaded.memory.get(), loaded.record->bytes);
  CKPT_CO_CHECK(co_await storage::read_shard(files, found.directory, loaded.record, target,
                                             std::move(hooks)));
  co_return std::move(loaded);
}

}  // namespace

Result<LoadedShard> load_shard(LoadRequest request) {
  asio::io_context context(1);
  const auto clock = make_system_clock(context.get_executor());
  const auto files = os::make_pool_file_system(os::disk_thread_count, os::DiskPriority::normal);
  std::optional<Result<LoadedShard>> result;
  std::exception_ptr thrown;
  asio::co_spawn(context, load(*files, *clock, std::move(request)),
                 [&](std::exception_ptr error, Result<LoadedShard> value) {
                   thrown = error;
                   result.emplace(std::move(value));
                 });
  context.run();
  if (thrown) std::rethrow_exception(thrown);
  if (!result) return fail(Errc::cancelled, "the reading of a checkpoint was ended");
  return std::move(*result);
}

}  // namespace ckpt::client
