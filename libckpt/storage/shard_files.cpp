#include "storage/shard_files.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "os/path.hpp"

namespace ckpt::storage {

ShardFiles::ShardFiles(std::string directory, std::shared_ptr<const format::ShardRecord> record)
    : directory_(std::move(directory)),
      record_(std::move(record)),
      members_(format::member_extents(*record_)) {}

Task<std::shared_ptr<ShardFiles>> ShardFiles::open(
    os::FileSystem& files, std::string directory,
    std::shared_ptr<const format::ShardRecord> record) {
  CKPT_ASSERT(record != nullptr);
  std::shared_ptr<ShardFiles> shard(new ShardFiles(std::move(directory), std::move(record)));
  for (std::size_t index = 0; index < shard->members_.size(); ++index) {
    const std::string path =
        os::join(shard->directory_, shard->record_->layout.members[index].file_name);
    const auto found = co_await files.status(path);
    // Not not_found: a caller takes that for an empty storage and starts from scratch.
    if (!found && found.error().code() == Errc::not_found)
      co_return fail(Errc::corruption, fmt::format("read {}: it is missing", os::display(path)));
    CKPT_CO_TRY(const auto status, found);
    if (status.kind != os::EntryKind::file) {
      co_return fail(Errc::corruption,
                     fmt::format("read {}: it is no regular file", os::display(path)));
    }
    CKPT_CO_TRY(auto file, co_await files.open_read(path, os::Caching::direct));
    if (status.bytes != shard->members_[index].bytes) {
      co_return fail(Errc::corruption,
                     fmt::format("read {}: it has {} bytes, its manifest says {}",
                                 os::display(path), status.bytes, shard->members_[index].bytes));
    }
    shard->opened_.push_back(std::move(file));
  }
  co_return shard;
}

Task<void> ShardFiles::close() {
  for (const auto& file : opened_) {
    CKPT_CO_CHECK(co_await file->close());
  }
  co_return Status();
}

// The files that hold a Chunk, for errors.
std::string ShardFiles::names_of(std::span<const FileSegment> segments) const {
  std::string names;
  for (const FileSegment& segment : segments) {
    if (!segment.member) continue;
    if (!names.empty()) names += " or ";
    names += os::join(directory_, record_->layout.members[*segment.member].file_name);
  }
  return os::display(names);
}

Task<void> ShardFiles::read_chunk(std::size_t index, std::span<std::byte> bytes,
                                  const TransferHooks& hooks) {
  const format::Extent chunk = record_->chunk(index);
  CKPT_ASSERT(bytes.size() == chunk.bytes);
  const std::vector<FileSegment> segments = segments_of(chunk, members_);
  if (hooks.before_transfer) {
    CKPT_CO_CHECK(co_await hooks.before_transfer(chunk.bytes));
  }
  for (const FileSegment& segment : segments) {
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    if (segment.member) {
      CKPT_ASSERT(*segment.member < opened_.size());
      os::File& file = *opened_[*segment.member];
      CKPT_CO_CHECK(co_await file.read_at(segment.file_offset, part));
    } else {
      std::memset(part.data(), 0, part.size());
    }
  }
  CKPT_CO_TRY(const Crc32 crc, co_await crc32_on(hooks.compute, bytes));
  if (crc != record_->chunk_crcs[index]) {
    co_return fail(Errc::corruption, fmt::format("read {}: chunk {} does not match its checksum",
                                                 names_of(segments), index));
  }
  if (index == 0) CKPT_POINT("load.disk.read");
  co_return Status();
}

}  // namespace ckpt::storage
