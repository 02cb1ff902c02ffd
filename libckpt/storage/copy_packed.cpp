#include "storage/copy_packed.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.hpp"
#include "base/units.hpp"
#include "os/path.hpp"
#include "storage/page_buffer.hpp"
#include "storage/shard_copies.hpp"

namespace ckpt::storage {

namespace {

constexpr std::uint64_t packed_piece_bytes = 8 * MiB;

}  // namespace

Task<std::unique_ptr<os::File>> begin_packed_copy(os::FileSystem& files, std::string from,
                                                  std::string to, format::StoredFile stored,
                                                  const TransferHooks& hooks) {
  CKPT_CO_TRY(const auto source, co_await files.open_read(from, os::Caching::direct));
  CKPT_CO_TRY(auto target, co_await files.create(to, os::Caching::direct));
  CKPT_CO_CHECK(co_await target->allocate(stored.bytes));
  PageBuffer memory(std::min(stored.bytes, packed_piece_bytes));
  Crc32 crc = 0;
  for (std::uint64_t offset = 0; offset < stored.bytes; offset += packed_piece_bytes) {
    const auto piece = memory.first(std::min(packed_piece_bytes, stored.bytes - offset));
    if (hooks.before_transfer) CKPT_CO_CHECK(co_await hooks.before_transfer(piece.size()));
    CKPT_CO_CHECK(co_await source->read_at(offset, piece));
    crc = crc32(piece, crc);
    CKPT_CO_CHECK(co_await target->write_at(offset, piece));
  }
  if (crc != stored.crc)
    co_return fail(Errc::corruption,
                   fmt::format("read {}: it does not match its checksum", os::display(from)));
  (void)co_await source->close();  // Every byte was verified.
  co_return std::move(target);
}

Task<void> copy_packed(os::FileSystem& files, std::string from, std::string to,
                       format::StoredFile stored, const TransferHooks& hooks) {
  CKPT_CO_TRY(const auto target, co_await begin_packed_copy(files, std::move(from), std::move(to),
                                                            std::move(stored), hooks));
  CKPT_CO_CHECK(co_await target->sync_data());
  Status closed = co_await target->close();
  co_return closed;
}

Task<void> copy_packed_from(os::FileSystem& files, std::vector<ShardPlace> places,
                            std::size_t member, std::string to, const TransferHooks& hooks) {
  const format::StoredFile stored = places.front().stored.at(member);
  std::vector<Error> errors;
  for (const ShardPlace& place : places) {
    // One that was compressed anew has its frames elsewhere.
    if (member >= place.stored.size() || place.stored[member] != stored) continue;
    if (!errors.empty() && files.objects(to) == nullptr) (void)co_await files.remove_file(to);
    const Status copied =
        co_await copy_packed(files, os::join(place.directory, stored.name), to, stored, hooks);
    if (copied) co_return Status();
    errors.push_back(copied.error());
  }
  co_return fail(most_telling(std::move(errors)));
}

}  // namespace ckpt::storage
