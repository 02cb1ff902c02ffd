#include "storage/shard_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"

namespace ckpt::storage {

ShardPlace shard_place(std::string_view step_directory, const format::ManifestShard& shard) {
  return ShardPlace(shard_directory(step_directory, shard), shard.files);
}

ShardFiles::ShardFiles(ShardPlace place, std::shared_ptr<const format::ShardRecord> record)
    : place_(std::move(place)),
      record_(std::move(record)),
      members_(format::member_extents(*record_)) {}

Task<std::shared_ptr<ShardFiles>> ShardFiles::open(
    os::FileSystem& files, ShardPlace place, std::shared_ptr<const format::ShardRecord> record) {
  CKPT_ASSERT(record != nullptr);
  std::shared_ptr<ShardFiles> shard(new ShardFiles(std::move(place), std::move(record)));
  const std::size_t stored = shard->place_.stored.size();
  if (stored != 0 && stored != shard->members_.size())
    co_return fail(Errc::corruption, fmt::format("read {}: its manifest has {} files, its part {}",
                                                 os::display(shard->place_.directory), stored,
                                                 shard->members_.size()));
  for (std::size_t index = 0; index < shard->members_.size(); ++index) {
    CKPT_CO_CHECK(co_await shard->open_member(files, index));
  }
  co_return shard;
}

Task<void> ShardFiles::open_member(os::FileSystem& files, std::size_t index) {
  const std::string path = os::join(place_.directory, name_of(index));
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
  const format::StoredFile* packed = packed_file(index);
  const std::uint64_t bytes = packed != nullptr ? packed->bytes : members_[index].bytes;
  if (status.bytes != bytes) {
    co_return fail(Errc::corruption, fmt::format("read {}: it has {} bytes, its manifest says {}",
                                                 os::display(path), status.bytes, bytes));
  }
  opened_.push_back(std::move(file));
  packed_.emplace_back();
  if (packed == nullptr) co_return Status();
  const format::PackedShape shape{members_[index], record_->chunk_bytes};
  auto reader = co_await PackedReader::open(*opened_.back(), *packed, shape);
  if (!reader) co_return fail(std::move(reader).error().context("read " + os::display(path)));
  packed_.back() = std::move(reader).value();
  co_return Status();
}

// Null: the file is plain.
const format::StoredFile* ShardFiles::packed_file(std::size_t member) const {
  if (place_.stored.empty() || !place_.stored[member].table) return nullptr;
  return &place_.stored[member];
}

const std::string& ShardFiles::name_of(std::size_t member) const {
  const format::StoredFile* packed = packed_file(member);
  return packed != nullptr ? packed->name : record_->layout.members[member].file_name;
}

bool ShardFiles::is_packed() const {
  return std::ranges::any_of(packed_, [](const auto& packed) { return packed != nullptr; });
}

Task<void> ShardFiles::close() {
  for (const auto& file : opened_) {
    CKPT_CO_CHECK(co_await file->close());
  }
  co_return Status();
}

// "FILE: chunk 3", for errors; a Chunk may go on in further files.
std::string ShardFiles::name_of_chunk(std::span<const FileSegment> segments,
                                      std::size_t index) const {
  std::string first, others;
  for (const FileSegment& segment : segments) {
    if (!segment.member) continue;
    const std::string& name = name_of(*segment.member);
    if (first.empty()) {
      first = os::display(os::join(place_.directory, name));
    } else {
      others += (others.empty() ? "" : ", ") + name;
    }
  }
  const std::string rest = others.empty() ? "" : fmt::format(" (which goes on in {})", others);
  return fmt::format("{}: chunk {}{}", first, index, rest);
}

Task<void> ShardFiles::read_segment(const FileSegment& segment, std::span<std::byte> target,
                                    Compute* compute) {
  if (!segment.member) {
    std::memset(target.data(), 0, target.size());
    co_return Status();
  }
  CKPT_ASSERT(*segment.member < opened_.size());
  if (PackedReader* packed = packed_[*segment.member].get()) {
    const auto chunk = static_cast<std::size_t>(segment.extent.offset / record_->chunk_bytes);
    const std::size_t frame = chunk - packed->shape().first_chunk();
    Status read = co_await packed->read(frame, target, compute);
    co_return read;
  }
  Status read = co_await opened_[*segment.member]->read_at(segment.file_offset, target);
  co_return read;
}

Task<void> ShardFiles::read_chunk(std::size_t index, std::span<std::byte> bytes,
                                  const TransferHooks& hooks) {
  ChunkCheck check = [this, index, bytes] { return crc32(bytes) == record_->chunk_crcs[index]; };
  Status read = co_await read_chunk(index, bytes, hooks, std::move(check));
  co_return read;
}

Task<void> ShardFiles::read_chunk(std::size_t index, std::span<std::byte> bytes,
                                  const TransferHooks& hooks, ChunkCheck check) {
  const format::Extent chunk = record_->chunk(index);
  CKPT_ASSERT(bytes.size() == chunk.bytes);
  const std::vector<FileSegment> segments = segments_of(chunk, members_);
  if (hooks.before_transfer) {
    CKPT_CO_CHECK(co_await hooks.before_transfer(chunk.bytes));
  }
  for (const FileSegment& segment : segments) {
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    Status read = co_await read_segment(segment, part, hooks.compute);
    if (!read && segment.member && packed_[*segment.member])
      co_return fail(std::move(read).error().context("read " + name_of_chunk(segments, index)));
    CKPT_CO_CHECK(std::move(read));
  }
  bool is_good = false;
  std::function<void()> look = [&is_good, &check] { is_good = check(); };
  CKPT_CO_CHECK(co_await run_on(hooks.compute, std::move(look)));
  if (!is_good) {
    co_return fail(Errc::corruption, fmt::format("read {} does not match its checksum",
                                                 name_of_chunk(segments, index)));
  }
  if (index == 0) CKPT_POINT("load.disk.read");
  co_return Status();
}

}  // namespace ckpt::storage
