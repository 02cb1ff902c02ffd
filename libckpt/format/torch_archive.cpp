// The part of the zip format that is used here (all of it is in APPNOTE 6.3.10):
//
//   for each entry: local header, name, zip64 extra where the entry needs it, padding extra, bytes
//   for each entry: directory record, name, zip64 extra where something needs it
//   zip64 end record and its locator where something needs them; end record
#include "format/torch_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/assert.hpp"
#include "base/checksum.hpp"
#include "base/units.hpp"
#include "format/archive_file.hpp"
#include "format/codec.hpp"
#include "format/zip_fields.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view folder = "archive/";  // torch wants one folder for all entries.
constexpr std::size_t entries_max = 1'000'000;
constexpr std::size_t entry_name_bytes_max = 1024;
constexpr std::uint64_t local_header_bytes = 30;
constexpr std::uint64_t zip64_end_bytes = 56 + 20;  // The record and its locator.
constexpr std::uint64_t extra_head_bytes = 4;
constexpr std::uint64_t small_alignment = 64;
constexpr std::uint16_t padding_extra = 0x4246;  // "FB", the id that torch uses.
constexpr std::uint16_t version_plain = 20;
constexpr std::uint16_t version_zip64 = 45;
constexpr std::uint16_t utf8_names = 1 << 11;
constexpr std::uint16_t date_1980 = (1 << 5) | 1;

bool is_wide(std::uint64_t value) {
  return value >= in_zip64;
}
std::uint32_t narrow(std::uint64_t value) {
  return is_wide(value) ? in_zip64 : static_cast<std::uint32_t>(value);
}

// Entry: one file of the archive; offsets count from the archive's start.
struct Entry {
  std::string_view name;
  std::uint64_t header = 0;
  std::uint64_t data = 0;
  std::uint64_t bytes = 0;
  Crc32 crc = 0;

  std::uint64_t name_bytes() const { return folder.size() + name.size(); }
  // A wide entry's local header has both sizes in it; its directory record only the wide ones.
  std::uint64_t local_zip64_bytes() const { return is_wide(bytes) ? extra_head_bytes + 16 : 0; }
  std::uint64_t directory_zip64_bytes() const {
    const std::uint64_t fields = (is_wide(bytes) ? 2 : 0) + (is_wide(header) ? 1 : 0);
    return fields == 0 ? 0 : extra_head_bytes + 8 * fields;
  }
  std::uint64_t header_bytes() const {  // Without the padding.
    return local_header_bytes + name_bytes() + local_zip64_bytes() + extra_head_bytes;
  }
  std::uint16_t version() const {
    return is_wide(bytes) || is_wide(header) ? version_zip64 : version_plain;
  }
};

// Places entries one after the other; returns where the directory begins.
std::uint64_t lay_out(std::span<Entry> entries) {
  std::uint64_t offset = 0;
  for (Entry& entry : entries) {
    entry.header = offset;
    const std::uint64_t alignment = entry.bytes < page_bytes ? small_alignment : page_bytes;
    entry.data = align_up(offset + entry.header_bytes(), alignment);
    offset = entry.data + entry.bytes;
  }
  return offset;
}

bool needs_zip64_end(std::size_t count, std::uint64_t directory, std::uint64_t directory_bytes) {
  return count >= UINT16_MAX || is_wide(directory) || is_wide(directory_bytes);
}

std::uint64_t directory_bytes(std::span<const Entry> entries) {
  std::uint64_t bytes = 0;
  for (const Entry& entry : entries)
    bytes += zip_directory_record_bytes + entry.name_bytes() + entry.directory_zip64_bytes();
  return bytes;
}

std::uint64_t archive_bytes(std::span<const Entry> entries, std::uint64_t directory) {
  const std::uint64_t bytes = directory_bytes(entries);
  const bool is_zip64 = needs_zip64_end(entries.size(), directory, bytes);
  return directory + bytes + (is_zip64 ? zip64_end_bytes : 0) + zip_end_bytes;
}

void write_name(Writer& writer, const Entry& entry) {
  writer.raw(std::as_bytes(std::span(folder)));
  writer.raw(std::as_bytes(std::span(entry.name)));
}

std::vector<std::byte> local_header(const Entry& entry) {
  const std::uint64_t padding = entry.data - entry.header - entry.header_bytes();
  const std::uint64_t extras = entry.local_zip64_bytes() + extra_head_bytes + padding;
  Writer writer;
  writer.u32(0x04034b50);
  writer.u16(entry.version());
  writer.u16(utf8_names);
  writer.u16(0);  // Stored.
  writer.u16(0);  // Midnight.
  writer.u16(date_1980);
  writer.u32(entry.crc);
  writer.u32(narrow(entry.bytes));
  writer.u32(narrow(entry.bytes));
  writer.u16(static_cast<std::uint16_t>(entry.name_bytes()));
  writer.u16(static_cast<std::uint16_t>(extras));
  write_name(writer, entry);
  if (entry.local_zip64_bytes() > 0) {
    writer.u16(zip64_extra);
    writer.u16(16);
    writer.u64(entry.bytes);
    writer.u64(entry.bytes);
  }
  writer.u16(padding_extra);
  writer.u16(static_cast<std::uint16_t>(padding));
  auto bytes = writer.take();
  bytes.resize(entry.data - entry.header);
  return bytes;
}

void write_record(Writer& writer, const Entry& entry) {
  writer.u32(0x02014b50);
  writer.u16(entry.version());
  writer.u16(entry.version());
  writer.u16(utf8_names);
  writer.u16(0);
  writer.u16(0);
  writer.u16(date_1980);
  writer.u32(entry.crc);
  writer.u32(narrow(entry.bytes));
  writer.u32(narrow(entry.bytes));
  writer.u16(static_cast<std::uint16_t>(entry.name_bytes()));
  writer.u16(static_cast<std::uint16_t>(entry.directory_zip64_bytes()));
  writer.u16(0);  // No comment.
  writer.u16(0);  // The first disk.
  writer.u16(0);
  writer.u32(0);
  writer.u32(narrow(entry.header));
  write_name(writer, entry);
  if (entry.directory_zip64_bytes() == 0) return;
  writer.u16(zip64_extra);
  writer.u16(static_cast<std::uint16_t>(entry.directory_zip64_bytes() - extra_head_bytes));
  if (is_wide(entry.bytes)) {
    writer.u64(entry.bytes);
    writer.u64(entry.bytes);
  }
  if (is_wide(entry.header)) writer.u64(entry.header);
}

void write_zip64_end(Writer& writer, std::uint64_t count, const Extent& directory) {
  writer.u32(0x06064b50);
  writer.u64(44);  // The size of the rest of this record.
  writer.u16(version_zip64);
  writer.u16(version_zip64);
  writer.u32(0);
  writer.u32(0);
  writer.u64(count);
  writer.u64(count);
  writer.u64(directory.bytes);
  writer.u64(directory.offset);
  writer.u32(0x07064b50);
  writer.u32(0);
  writer.u64(directory.end());
  writer.u32(1);
}

std::vector<std::byte> directory_of(std::span<const Entry> entries, std::uint64_t begin) {
  const Extent directory{begin, directory_bytes(entries)};
  Writer writer;
  writer.reserve(directory.bytes + zip64_end_bytes + zip_end_bytes);
  for (const Entry& entry : entries) write_record(writer, entry);
  if (needs_zip64_end(entries.size(), directory.offset, directory.bytes))
    write_zip64_end(writer, entries.size(), directory);
  const auto count = static_cast<std::uint16_t>(std::min<std::size_t>(entries.size(), UINT16_MAX));
  writer.u32(0x06054b50);
  writer.u16(0);
  writer.u16(0);
  writer.u16(count);
  writer.u16(count);
  writer.u32(narrow(directory.bytes));
  writer.u32(narrow(directory.offset));
  writer.u16(0);
  return writer.take();
}

void copy_to(std::span<std::byte> target, std::uint64_t offset, std::span<const std::byte> bytes) {
  CKPT_ASSERT(offset + bytes.size() <= target.size());
  std::memcpy(target.data() + offset, bytes.data(), bytes.size());
}

void finish(std::span<std::byte> archive, std::span<Entry> entries) {
  const std::uint64_t directory = lay_out(entries);
  for (Entry& entry : entries) {
    CKPT_ASSERT(entry.data + entry.bytes <= archive.size());
    entry.crc = crc32(archive.subspan(entry.data, entry.bytes));
    copy_to(archive, entry.header, local_header(entry));
  }
  const auto end = directory_of(entries, directory);
  CKPT_ASSERT(directory + end.size() == archive.size());
  copy_to(archive, directory, end);
}

std::string_view entry_name(const TensorPlace& tensor) {
  const std::size_t separator = tensor.name.find(archive_separator);
  CKPT_ASSERT(separator != std::string::npos);
  return std::string_view(tensor.name).substr(separator + archive_separator.size());
}

Status check_count(std::size_t count) {
  if (count <= entries_max) return {};
  return fail(Errc::exhausted,
              fmt::format("an archive of {} entries, where {} are the most", count, entries_max));
}

Status check_entry_name(std::string_view name) {
  if (!name.empty() && name.size() <= entry_name_bytes_max) return {};
  return fail(Errc::invalid_argument, fmt::format("archive entry \"{}\": its name is 1 to {} bytes",
                                                  name.substr(0, 100), entry_name_bytes_max));
}

// Borrows the name.
Entry entry_of(const FileEntry& entry) {
  return {entry.name, entry.header, entry.data, entry.bytes, entry.crc};
}

}  // namespace

Result<std::uint64_t> place_entries(std::span<FileEntry> entries) {
  CKPT_CHECK(check_count(entries.size()));
  std::vector<Entry> placed;
  for (const FileEntry& entry : entries) {
    CKPT_CHECK(check_entry_name(entry.name));
    placed.push_back(entry_of(entry));
  }
  const std::uint64_t directory = lay_out(placed);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    entries[i].header = placed[i].header;
    entries[i].data = placed[i].data;
  }
  return directory;
}

std::vector<std::byte> entry_header(const FileEntry& entry) {
  return local_header(entry_of(entry));
}

std::vector<std::byte> archive_end(std::span<const FileEntry> entries, std::uint64_t begin) {
  std::vector<Entry> placed;
  for (const FileEntry& entry : entries) placed.push_back(entry_of(entry));
  return directory_of(placed, begin);
}

Result<std::uint64_t> place_archive(std::span<TensorPlace> entries, std::uint64_t begin) {
  CKPT_CHECK(check_count(entries.size()));
  std::vector<Entry> placed;
  for (const TensorPlace& entry : entries) {
    const std::string_view name = entry_name(entry);
    CKPT_CHECK(check_entry_name(name));
    placed.push_back({name, 0, 0, entry.extent.bytes, 0});
  }
  const std::uint64_t directory = lay_out(placed);
  for (std::size_t i = 0; i < placed.size(); ++i) entries[i].extent.offset = begin + placed[i].data;
  return archive_bytes(placed, directory);
}

void finish_archives(const Layout& layout, std::span<std::byte> slot) {
  for (std::size_t member = 0; member < layout.members.size(); ++member) {
    if (layout.members[member].kind != MemberKind::torch) continue;
    const Extent extent = layout.members[member].extent;
    CKPT_ASSERT(extent.end() <= slot.size());
    std::vector<Entry> entries;
    for (const TensorPlace& tensor : layout.tensors) {
      if (tensor.member != member) continue;
      entries.push_back({entry_name(tensor), 0, 0, tensor.extent.bytes, 0});
    }
    finish(slot.subspan(extent.offset, extent.bytes), entries);
  }
}

}  // namespace ckpt::format
