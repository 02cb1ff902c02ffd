// The names of the fields are those of APPNOTE 6.3.10.
#include "format/zip_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/assert.hpp"
#include "format/codec.hpp"
#include "format/json.hpp"
#include "format/zip_fields.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view zip_label = "zip file";
constexpr std::size_t locator_bytes = 20;
constexpr std::size_t end64_bytes = 56;
constexpr std::uint16_t is_encrypted = 1;
constexpr std::uint16_t count_in_zip64 = UINT16_MAX;

Unexpected broken_zip(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("{}: {}", zip_label, problem));
}

Unexpected unsupported(const std::string& name, std::string_view problem) {
  return fail(Errc::unsupported,
              fmt::format("{}: entry \"{}\" {}", zip_label, name.substr(0, 100), problem));
}

// The end record of a large file points to a larger one, right before its locator.
Result<ZipEnd> read_end64(std::span<const std::byte> tail) {
  if (tail.size() < zip_end_bytes + locator_bytes + end64_bytes)
    return broken_zip("its end is cut off");
  Reader locator(tail.subspan(tail.size() - zip_end_bytes - locator_bytes, locator_bytes),
                 zip_label);
  if (locator.u32() != 0x07064b50) return broken_zip("it has no zip64 locator");
  Reader end(tail.subspan(tail.size() - zip_end_bytes - locator_bytes - end64_bytes, end64_bytes),
             zip_label);
  if (end.u32() != 0x06064b50) return broken_zip("it has no zip64 end right before its end");
  if (end.u64() != end64_bytes - 12) return broken_zip("a zip64 end of another size");
  (void)end.u32();  // Versions.
  const std::uint64_t disks = end.u64();
  const std::uint64_t entries_here = end.u64();
  ZipEnd found;
  found.entries = end.u64();
  found.directory.bytes = end.u64();
  found.directory.offset = end.u64();
  CKPT_CHECK(end.finish());
  if (disks != 0 || entries_here != found.entries) return broken_zip("it has several disks");
  return found;
}

// The sizes that did not fit into the record.
Status read_zip64_extra(std::span<const std::byte> extras, ZipEntry& entry, bool has_bytes,
                        bool has_header) {
  Reader reader(extras, zip_label);
  while (reader.is_good() && reader.remaining() >= 4) {
    const std::uint16_t id = reader.u16();
    const std::span<const std::byte> field = reader.raw(reader.u16());
    if (id != zip64_extra) continue;
    Reader wide(field, zip_label);
    const std::uint64_t bytes = has_bytes ? wide.u64() : entry.bytes;
    const std::uint64_t compressed = has_bytes ? wide.u64() : entry.bytes;
    if (has_header) entry.header = wide.u64();
    if (!wide.is_good()) return broken_zip("a zip64 field that is too short");
    if (compressed != bytes) return unsupported(entry.name, "is compressed");
    entry.bytes = bytes;
    return {};
  }
  return broken_zip("an entry lacks its zip64 field");
}

Result<ZipEntry> read_record(Reader& reader) {
  ZipEntry entry;
  if (reader.u32() != 0x02014b50) return broken_zip("no entry where its directory has one");
  (void)reader.u32();  // Versions.
  const std::uint16_t flags = reader.u16();
  const std::uint16_t method = reader.u16();
  (void)reader.u32();  // Time and date.
  entry.crc = reader.u32();
  const std::uint32_t compressed = reader.u32();
  entry.bytes = reader.u32();
  const std::uint16_t name_bytes = reader.u16();
  const std::uint16_t extra_bytes = reader.u16();
  const std::uint16_t comment_bytes = reader.u16();
  const std::uint16_t disk = reader.u16();
  (void)reader.u16();  // Attributes of it, and of its file.
  (void)reader.u32();
  entry.header = reader.u32();
  const auto name = reader.raw(name_bytes);
  const auto extras = reader.raw(extra_bytes);
  (void)reader.raw(comment_bytes);
  if (!reader.is_good()) return broken_zip("its directory is cut off");
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (entry.name.empty() || !is_utf8(entry.name) || entry.name.find('\0') != std::string::npos)
    return broken_zip("an entry's name is not allowed");
  if ((flags & is_encrypted) != 0) return unsupported(entry.name, "is encrypted");
  if (method != 0) return unsupported(entry.name, "is compressed");
  if (disk != 0) return unsupported(entry.name, "is on another disk");
  const bool has_bytes = entry.bytes == in_zip64, has_header = entry.header == in_zip64;
  if (compressed != entry.bytes) return unsupported(entry.name, "is compressed");
  if (has_bytes || has_header) CKPT_CHECK(read_zip64_extra(extras, entry, has_bytes, has_header));
  return entry;
}

}  // namespace

Result<ZipEnd> find_zip_end(std::span<const std::byte> tail, std::uint64_t file_bytes) {
  if (tail.size() < zip_end_bytes || tail.size() > file_bytes) return broken_zip("it is too short");
  Reader reader(tail.last(zip_end_bytes), zip_label);
  if (reader.u32() != 0x06054b50) return broken_zip("it does not end as one");
  const std::uint32_t disks = reader.u32();
  const std::uint16_t entries_here = reader.u16();
  ZipEnd end;
  end.entries = reader.u16();
  end.directory.bytes = reader.u32();
  end.directory.offset = reader.u32();
  if (reader.u16() != 0) return broken_zip("it has a comment");
  CKPT_CHECK(reader.finish());
  std::uint64_t behind = zip_end_bytes;
  const bool is_wide = end.entries == count_in_zip64 || end.directory.bytes == in_zip64 ||
                       end.directory.offset == in_zip64;
  if (is_wide) {
    CKPT_TRY(end, read_end64(tail));
    behind += locator_bytes + end64_bytes;
  } else if (disks != 0 || entries_here != end.entries) {
    return broken_zip("it has several disks");
  }
  if (end.entries > zip_entries_max || end.directory.bytes > zip_directory_bytes_max)
    return broken_zip("it has too many entries");
  // Nothing lies between the directory and the end.
  if (end.directory.offset > file_bytes || end.directory.bytes > file_bytes ||
      end.directory.end() > file_bytes || file_bytes - end.directory.end() < behind)
    return broken_zip("its directory does not end where its end begins");
  return end;
}

Result<std::vector<ZipEntry>> parse_zip_directory(std::span<const std::byte> directory,
                                                  const ZipEnd& end) {
  CKPT_ASSERT(directory.size() == end.directory.bytes);
  if (end.entries > directory.size() / zip_directory_record_bytes)
    return broken_zip("its directory is cut off");
  std::vector<ZipEntry> entries;
  entries.reserve(end.entries);
  std::unordered_set<std::string> names;
  Reader reader(directory, zip_label);
  for (std::uint64_t index = 0; index < end.entries; ++index) {
    CKPT_TRY(ZipEntry entry, read_record(reader));
    if (!names.insert(entry.name).second)
      return broken_zip(fmt::format("two entries \"{}\"", entry.name.substr(0, 100)));
    entries.push_back(std::move(entry));
  }
  CKPT_CHECK(reader.finish());
  std::ranges::sort(entries, {}, &ZipEntry::header);
  for (std::size_t index = 0; index < entries.size(); ++index) {
    const ZipEntry& entry = entries[index];
    const std::uint64_t next =
        index + 1 < entries.size() ? entries[index + 1].header : end.directory.offset;
    const bool fits = entry.header < next && next - entry.header >= zip_local_header_bytes &&
                      next - entry.header - zip_local_header_bytes >= entry.bytes;
    if (!fits)
      return broken_zip(
          fmt::format("entry \"{}\" overlaps what is behind it", entry.name.substr(0, 100)));
  }
  return entries;
}

Result<Extent> zip_data(std::span<const std::byte> local_header, const ZipEntry& entry,
                        std::uint64_t end) {
  CKPT_ASSERT(local_header.size() == zip_local_header_bytes);
  Reader reader(local_header, zip_label);
  const std::uint32_t magic = reader.u32();
  (void)reader.u16();  // Version.
  const std::uint16_t flags = reader.u16();
  const std::uint16_t method = reader.u16();
  (void)reader.raw(16);  // Time, checksum and sizes: the directory has them, too.
  const std::uint64_t name_bytes = reader.u16();
  const std::uint64_t extra_bytes = reader.u16();
  CKPT_CHECK(reader.finish());
  if (magic != 0x04034b50)
    return broken_zip(
        fmt::format("entry \"{}\" is not where the directory says", entry.name.substr(0, 100)));
  if ((flags & is_encrypted) != 0 || method != 0)
    return unsupported(entry.name, "is compressed or encrypted");
  const std::uint64_t offset = entry.header + zip_local_header_bytes + name_bytes + extra_bytes;
  if (offset > end || end - offset < entry.bytes)
    return broken_zip(
        fmt::format("entry \"{}\" overlaps what is behind it", entry.name.substr(0, 100)));
  return Extent{offset, entry.bytes};
}

}  // namespace ckpt::format
