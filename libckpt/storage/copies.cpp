#include "storage/copies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ckpt/checkpointer.hpp>
#include <set>

#include "base/assert.hpp"
#include "format/field_codec.hpp"
#include "os/path.hpp"
#include "storage/attempt.hpp"
#include "storage/chunk_map.hpp"
#include "storage/parallel.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

using format::Reader;
using format::Writer;

namespace {

constexpr std::string_view extension = "copies";
constexpr std::uint64_t note_bytes_max = 64u << 20;
constexpr std::size_t note_reads_in_flight = 16;  // Small reads, as those of fronts.
constexpr std::size_t ranks_named_max = 8;
constexpr std::size_t digest_bytes = 16;

Digest identity_of(const format::TensorPlace& tensor) {
  const auto shape = format::global_shape_of(tensor.piece, tensor.shape);
  const Region region = format::region_of(tensor.piece, tensor.shape);
  return format::identity_of({tensor.name, tensor.dtype, shape, region, tensor.piece->order});
}

// The smallest ones: those of one size are all in, or none is, so that ranks choose alike.
void keep_smallest(std::vector<DeclaredCopy>& copies) {
  const auto bytes_of_one = [](const DeclaredCopy& copy) { return copy.extent.bytes; };
  std::ranges::sort(copies, {}, [&](const DeclaredCopy& copy) {
    return std::pair(copy.extent.bytes, copy.identity);
  });
  std::uint64_t sum = 0;
  for (auto begin = copies.begin(); begin != copies.end();) {
    const auto end =
        std::ranges::upper_bound(begin, copies.end(), bytes_of_one(*begin), {}, bytes_of_one);
    const auto count = static_cast<std::uint64_t>(end - begin);
    if (count > (compared_bytes_max - sum) / bytes_of_one(*begin)) {
      copies.erase(begin, copies.end());
      return;
    }
    sum += count * bytes_of_one(*begin);
    begin = end;
  }
}

std::vector<std::byte> encode(const std::vector<CopyNote>& notes) {
  Writer body;
  format::PlainWriter(body).put(notes);
  const std::vector<std::byte> bytes = body.take();
  Writer whole;
  whole.digest(digest_of(bytes));
  whole.raw(bytes);
  return whole.take();
}

Result<std::vector<CopyNote>> decode_notes(std::span<const std::byte> bytes,
                                           const Digest& expected) {
  if (bytes.size() < digest_bytes || digest_of(bytes.subspan(digest_bytes)) != expected)
    return fail(Errc::corruption, "note of copies: it does not match its digest");
  Reader reader(bytes.subspan(digest_bytes), "note of copies");
  std::vector<CopyNote> notes;
  format::PlainReader(reader).take(notes);
  CKPT_CHECK(reader.finish());
  return notes;
}

std::string note_name(std::uint32_t rank) {
  return format::member_name(rank, extension);
}

// Not synced: it is read and removed before the step is published.
Task<void> write_note(os::FileSystem& files, std::string path, std::vector<std::byte> note) {
  if (files.objects(path) != nullptr) {
    Status put = co_await files.write_small(std::move(path), std::move(note));
    co_return put;
  }
  CKPT_CO_TRY(const auto file, co_await files.create(std::move(path), os::Caching::buffered));
  CKPT_CO_CHECK(co_await file->write_at(0, note));
  Status closed = co_await file->close();
  co_return closed;
}

}  // namespace

std::vector<DeclaredCopy> declared_copies(const format::ShardRecord& record) {
  std::vector<DeclaredCopy> copies;
  for (const format::TensorPlace& tensor : record.layout.tensors) {
    const bool is_copy = tensor.piece && tensor.piece->copy != 0 && tensor.alias_of.empty();
    if (is_copy && tensor.extent.bytes > 0)
      copies.push_back({tensor.name, identity_of(tensor), tensor.extent});
  }
  CKPT_ASSERT(record.blobs.size() == record.blob_names.size());
  for (std::size_t index = 0; index < record.blobs.size(); ++index) {
    const std::string& name = record.blob_names[index];
    if (!name.starts_with(common_blob_prefix) || record.blobs[index].bytes == 0) continue;
    copies.push_back({name, digest_of(std::as_bytes(std::span(name))), record.blobs[index]});
  }
  keep_smallest(copies);
  return copies;
}

Task<void> note_copies(os::FileSystem& files, ShardToWrite source, std::string work_directory,
                       Compute* compute) {
  const std::vector<DeclaredCopy> copies = declared_copies(*source.record);
  std::vector<CopyNote> notes;
  if (source.copies) notes = *source.copies;
  if (copies.empty() && notes.empty()) co_return Status();
  std::function<void()> hash = [&] {
    for (const DeclaredCopy& copy : copies) {
      Crc32 crc = 0;
      for (const auto bytes : pieces_at(source.slot, copy.extent)) crc = crc32(bytes, crc);
      notes.push_back({copy.name, copy.identity, crc});
    }
  };
  CKPT_CO_CHECK(co_await run_on(compute, std::move(hash)));
  std::string path =
      path_in_attempt(files, work_directory, note_name(source.record->id.rank), source.turn);
  Status written = co_await write_note(files, std::move(path), encode(notes));
  co_return written;
}

std::string describe(const CopyDifference& difference) {
  std::string groups;
  for (const auto& ranks : difference.ranks) {
    const std::size_t named = std::min(ranks.size(), ranks_named_max);
    groups +=
        fmt::format("{}{} {}", groups.empty() ? "" : "; ", ranks.size() == 1 ? "rank" : "ranks",
                    fmt::join(std::span(ranks).first(named), ", "));
    if (named < ranks.size()) groups += fmt::format(" and {} more", ranks.size() - named);
  }
  return fmt::format("\"{}\" differs: {}", difference.name, groups);
}

std::string CopiesDiffer::in_words() const {
  if (saves == 0) return {};
  return fmt::format("step {}: {}{}", number(at.step), describe(first),
                     tensors > 1 ? fmt::format(", and {} more", tensors - 1) : "");
}

bool CopyComparison::add_rank(std::uint32_t rank, const Digest& notes) {
  std::vector<std::uint32_t>& ranks = ranks_[notes];
  ranks.push_back(rank);
  return ranks.size() > 1;
}

void CopyComparison::add_notes(const Digest& digest, std::vector<CopyNote> notes) {
  if (notes.size() > compared_entries_max - entries_) {
    has_left_out_ = true;
    return;
  }
  entries_ += notes.size();
  notes_[digest] = std::move(notes);
}

std::vector<CopyDifference> CopyComparison::differences() const {
  struct Seen {
    const CopyNote* note = nullptr;
    const Digest* notes = nullptr;
  };
  std::map<Digest, std::vector<Seen>> seen;  // By identity.
  for (const auto& [digest, notes] : notes_)
    for (const CopyNote& note : notes) seen[note.identity].push_back({&note, &digest});
  std::vector<CopyDifference> differences;
  for (const auto& [identity, all] : seen) {
    std::map<Crc32, std::vector<std::uint32_t>> by_bytes;
    for (const Seen& one : all) {
      std::vector<std::uint32_t>& ranks = by_bytes[one.note->crc];
      const auto& more = ranks_.at(*one.notes);
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    if (by_bytes.size() == 1) continue;
    CopyDifference difference{all.front().note->name, {}};
    for (auto& [crc, ranks] : by_bytes) {
      std::ranges::sort(ranks);
      difference.ranks.push_back(std::move(ranks));
    }
    std::ranges::sort(difference.ranks);
    differences.push_back(std::move(difference));
  }
  std::ranges::sort(differences, {}, [](const CopyDifference& one) {
    return std::pair(one.name, one.ranks.front().front());
  });
  return differences;
}

namespace {

struct NoteFile {
  std::uint32_t rank = 0;
  std::string path;
};

// Those of the turns that count are wanted; all go in the end.
struct NoteFiles {
  std::vector<NoteFile> wanted;
  std::vector<std::string> all;
};

Task<NoteFiles> find_notes(os::FileSystem& files, std::string directory, std::uint32_t world_size,
                           std::vector<std::uint32_t> turns) {
  NoteFiles found;
  std::set<std::string> folders{directory};
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const std::uint32_t turn = turns.empty() ? 0 : turns[rank];
    std::string path = path_in_attempt(files, directory, note_name(rank), turn);
    folders.insert(path.substr(0, path.rfind('/')));
    found.wanted.push_back({rank, std::move(path)});
  }
  std::set<std::string> there;
  for (const std::string& folder : folders) {
    CKPT_CO_TRY(const auto entries, co_await files.list(folder));
    for (const os::DirectoryEntry& entry : entries) {
      const std::string_view stem = without_turn(entry.name);
      const bool is_note = format::is_name_of_rank(stem) && stem.ends_with(".copies");
      if (is_note && entry.kind == os::EntryKind::file) there.insert(os::join(folder, entry.name));
    }
  }
  std::erase_if(found.wanted, [&](const NoteFile& file) { return !there.contains(file.path); });
  found.all.assign(there.begin(), there.end());
  co_return found;
}

Task<void> read_note(os::FileSystem& files, CopyComparison& comparison, NoteFile note) {
  CKPT_CO_TRY(const auto file, co_await files.open_read(note.path, os::Caching::buffered));
  std::vector<std::byte> head(digest_bytes);
  CKPT_CO_CHECK(co_await file->read_at(0, head));
  CKPT_CO_CHECK(co_await file->close());
  Reader reader(head, "note of copies");
  const Digest digest = reader.digest();
  if (comparison.add_rank(note.rank, digest)) co_return Status();
  CKPT_CO_TRY(const auto bytes, co_await files.read_small(note.path, note_bytes_max));
  CKPT_CO_TRY(auto notes, decode_notes(bytes, digest));
  comparison.add_notes(digest, std::move(notes));
  co_return Status();
}

}  // namespace

Task<ComparedCopies> compare_copies(os::FileSystem& files, std::string work_directory,
                                    std::uint32_t world_size, std::vector<std::uint32_t> turns) {
  CKPT_CO_TRY(const NoteFiles found,
              co_await find_notes(files, work_directory, world_size, std::move(turns)));
  CopyComparison comparison;
  std::function<Task<void>(std::size_t)> read = [&](std::size_t index) {
    return read_note(files, comparison, found.wanted[index]);
  };
  const Status compared =
      co_await for_each_parallel(found.wanted.size(), note_reads_in_flight, std::move(read));
  // Also when one could not be read: a file left here would be part of the checkpoint.
  std::function<Task<void>(std::size_t)> remove = [&](std::size_t index) {
    return files.remove_file(found.all[index]);
  };
  CKPT_CO_CHECK(
      co_await for_each_parallel(found.all.size(), note_reads_in_flight, std::move(remove)));
  if (!compared) co_return fail(Error(compared.error()));
  ComparedCopies result;
  result.differences = comparison.differences();
  result.has_left_out = comparison.has_left_out();
  co_return result;
}

}  // namespace ckpt::storage
