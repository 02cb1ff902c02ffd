#include "storage/part_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "format/piece.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"

namespace ckpt::storage {

namespace {

using Part = std::shared_ptr<const format::ShardPart>;
using Record = std::shared_ptr<const format::ShardRecord>;

// Most fronts fit: reading one is one request.
constexpr std::uint64_t first_read_bytes = 16 * KiB;

// Reads the first bytes of a file, until all of the front is there.
Task<std::vector<std::byte>> read_until_front(os::FileSystem& files, std::string path,
                                              std::uint64_t file_bytes) {
  CKPT_CO_TRY(const auto file, co_await files.open_read(path, os::Caching::buffered));
  std::vector<std::byte> bytes(std::min(file_bytes, first_read_bytes));
  CKPT_CO_CHECK(co_await file->read_at(0, bytes));
  CKPT_CO_TRY(const std::uint64_t front_bytes, format::part_front_bytes(bytes));
  if (front_bytes > file_bytes) co_return fail(Errc::corruption, "it is cut off");
  const std::uint64_t there = bytes.size();
  bytes.resize(front_bytes);
  if (there < front_bytes) {
    const std::span<std::byte> rest = std::span(bytes).subspan(there);
    CKPT_CO_CHECK(co_await file->read_at(there, rest));
  }
  CKPT_CO_CHECK(co_await file->close());
  co_return bytes;
}

Result<SealedFront> unseal(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  SealedFront sealed;
  CKPT_TRY(sealed.front, format::decode_part_front(bytes));
  if (sealed.front.part_bytes() != file_bytes)
    return fail(Errc::corruption, fmt::format("it has {} bytes, its front says {}", file_bytes,
                                              sealed.front.part_bytes()));
  sealed.seal = {file_bytes, sealed.front.front_bytes, digest_of(bytes)};
  return sealed;
}

Task<SealedFront> read_sealed_front(os::FileSystem& files, std::string path) {
  CKPT_CO_TRY(const os::FileStatus status, co_await files.status(path));
  const bool is_possible = status.kind == os::EntryKind::file &&
                           status.bytes >= format::part_head_bytes &&
                           status.bytes <= format::part_bytes_max;
  if (!is_possible)
    co_return fail(Errc::corruption, fmt::format("{} bytes are no part", status.bytes));
  CKPT_CO_TRY(const auto bytes, co_await read_until_front(files, path, status.bytes));
  auto sealed = unseal(bytes, status.bytes);
  co_return sealed;
}

Result<Part> decode_part(const format::Manifest& manifest, std::uint32_t rank,
                         std::span<const std::byte> bytes) {
  const format::ManifestShard& shard = manifest.shards[rank];
  CKPT_TRY(auto part, format::decode_shard_part(bytes, shard.part));
  CKPT_CHECK(format::check_belongs(manifest, rank, part.record));
  if (format::digest_of(part.record) != shard.record_digest)
    return fail(Errc::corruption, "its record is not the one that the manifest names");
  if (format::files_of(part) != shard.files)
    return fail(Errc::corruption, "its files are not those that the manifest names");
  return std::make_shared<const format::ShardPart>(std::move(part));
}

// For version 1, whose manifest had it all.
PartExcerpt excerpt_of(const format::ShardPart& part, std::span<const std::string> names) {
  PartExcerpt excerpt;
  excerpt.front.record = part.record;
  excerpt.front.record_digest = format::digest_of(part.record);
  excerpt.front.files = format::files_of(part);
  auto& tensors = excerpt.front.record.layout.tensors;
  excerpt.front.tensors = static_cast<std::uint32_t>(tensors.size());
  for (std::uint32_t place = 0; place < tensors.size(); ++place) {
    const format::TensorPlace& tensor = tensors[place];
    if (format::is_among(names, tensor.name, tensor.piece, tensor.shape))
      excerpt.entries.push_back({place, tensor});
  }
  tensors.clear();
  std::ranges::sort(excerpt.entries, {}, [](const format::PartEntry& entry) -> const std::string& {
    return entry.tensor.name;
  });
  return excerpt;
}

Status check_front(const format::Manifest& manifest, std::uint32_t rank,
                   const format::PartFront& front) {
  const format::ManifestShard& shard = manifest.shards[rank];
  CKPT_CHECK(format::check_belongs(manifest, rank, front.record));
  if (front.record_digest == shard.record_digest && front.files == shard.files &&
      front.part_bytes() == shard.part.bytes)
    return {};
  return fail(Errc::corruption, "its front is not what the manifest says");
}

// The blocks that may have the name, or parts of the tensor that are named after their place.
void choose_blocks(const format::PartFront& front, const std::string& name,
                   std::set<const format::PartBlock*>& chosen) {
  const format::PartBlock* const end = front.blocks.data() + front.blocks.size();
  if (const format::PartBlock* block = front.find(name)) chosen.insert(block);
  const format::PartBlock* block = front.find(format::first_part_name(name));
  if (block == nullptr) block = front.blocks.data();
  const std::string behind = format::behind_part_names(name);
  while (block != end && block->first_name < behind) chosen.insert(block++);
}

// These blocks, in runs without a gap.
std::vector<std::span<const format::PartBlock>> runs_of(const format::PartFront& front,
                                                        std::span<const std::string> names) {
  std::set<const format::PartBlock*> chosen;
  for (const std::string& name : names) choose_blocks(front, name, chosen);
  std::vector<std::span<const format::PartBlock>> runs;
  const format::PartBlock* behind = nullptr;
  for (const format::PartBlock* block : chosen) {
    if (block == behind) {
      runs.back() = {runs.back().data(), runs.back().size() + 1};
    } else {
      runs.push_back({block, 1});
    }
    behind = block + 1;
  }
  return runs;
}

Task<PartExcerpt> read_excerpt(os::FileSystem& files, std::string path,
                               std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
                               std::vector<std::string> names) {
  const format::PartSeal& seal = manifest->shards[rank].part;
  CKPT_CO_TRY(const auto file, co_await files.open_read(path, os::Caching::buffered));
  std::vector<std::byte> bytes(seal.front_bytes);
  CKPT_CO_CHECK(co_await file->read_at(0, bytes));
  if (digest_of(bytes) != seal.front_digest)
    co_return fail(Errc::corruption, "its bytes do not match its digest");
  PartExcerpt excerpt;
  CKPT_CO_TRY(excerpt.front, format::decode_part_front(bytes));
  CKPT_CO_CHECK(check_front(*manifest, rank, excerpt.front));
  for (const auto run : runs_of(excerpt.front, names)) {
    const std::uint64_t begin = run.front().offset;
    bytes.resize(run.back().offset + run.back().bytes - begin);
    CKPT_CO_CHECK(co_await file->read_at(begin, bytes));
    for (const format::PartBlock& block : run) {
      const auto part = std::span(bytes).subspan(block.offset - begin, block.bytes);
      CKPT_CO_TRY(auto entries, format::decode_part_block(excerpt.front, block, part));
      for (format::PartEntry& entry : entries) {
        const format::TensorPlace& tensor = entry.tensor;
        if (format::is_among(names, tensor.name, tensor.piece, tensor.shape))
          excerpt.entries.push_back(std::move(entry));
      }
    }
  }
  CKPT_CO_CHECK(co_await file->close());
  co_return excerpt;
}

bool is_no_file(const Error& error) {
  return error.code() == Errc::not_found || error.code() == Errc::invalid_argument;
}

}  // namespace

Task<PartExcerpt> find_tensors(os::FileSystem& files, std::string step_directory,
                               std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
                               std::vector<std::string> names) {
  std::ranges::sort(names);
  CKPT_CO_TRY(const auto shard, format::shard_of(*manifest, rank));
  if (shard.embedded) co_return excerpt_of(*shard.embedded, names);
  const std::string path =
      os::join(shard_directory(step_directory, shard), format::part_name(rank));
  auto excerpt = co_await read_excerpt(files, path, manifest, rank, std::move(names));
  if (excerpt) co_return excerpt;
  const std::string context = "read " + os::display(path);
  if (is_no_file(excerpt.error()))
    co_return fail(Errc::corruption, fmt::format("{}: {}", context, excerpt.error().text()));
  co_return fail(std::move(excerpt).error().context(context));
}

Task<Part> read_part(os::FileSystem& files, std::string step_directory,
                     std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
                     Compute* compute) {
  CKPT_CO_TRY(const auto shard, format::shard_of(*manifest, rank));
  if (shard.embedded) co_return shard.embedded;
  const std::string path =
      os::join(shard_directory(step_directory, shard), format::part_name(rank));
  const std::string context = "read " + os::display(path);
  auto bytes = co_await files.read_small(path, format::part_bytes_max);
  // Not not_found: a caller takes that for an empty storage and starts from scratch.
  if (!bytes && is_no_file(bytes.error()))
    co_return fail(Errc::corruption, fmt::format("{}: {}", context, bytes.error().text()));
  if (!bytes) co_return fail(std::move(bytes).error().context(context));
  std::function<Result<Part>()> work = [&]() -> Result<Part> {
    return decode_part(*manifest, rank, *bytes);
  };
  auto part = co_await compute_on(compute, std::move(work));
  if (!part) co_return fail(std::move(part).error().context(context));
  co_return part;
}

Task<Record> read_record(os::FileSystem& files, std::string step_directory,
                         std::shared_ptr<const format::Manifest> manifest, std::uint32_t rank,
                         Compute* compute) {
  CKPT_CO_TRY(const Part part, co_await read_part(files, step_directory, manifest, rank, compute));
  co_return Record(part, &part->record);
}

Task<SealedFront> read_front(os::FileSystem& files, std::string path) {
  auto sealed = co_await read_sealed_front(files, path);
  if (!sealed) co_return fail(std::move(sealed).error().context("read " + os::display(path)));
  co_return sealed;
}

}  // namespace ckpt::storage
