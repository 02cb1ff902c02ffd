#include "storage/shard_copies.hpp"

#include <algorithm>
#include <iterator>

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/part_reader.hpp"

namespace ckpt::storage {

bool is_same_save(const format::Manifest& one, const format::Manifest& other) {
  const Checkpoint left = describe(one, {}), right = describe(other, {});
  return left.run == right.run && left.at == right.at && left.digests == right.digests;
}

Error most_telling(std::vector<Error> errors) {
  CKPT_ASSERT(!errors.empty());
  const auto unread =
      std::ranges::find_if(errors, [](const Error& error) { return is_unreadable(error.code()); });
  return unread == errors.end() ? errors.front() : *unread;
}

Task<std::shared_ptr<ShardCopies>> ShardCopies::open(
    os::FileSystem& files, std::vector<ShardPlace> places,
    std::shared_ptr<const format::ShardRecord> record) {
  std::shared_ptr<ShardCopies> copies(new ShardCopies());
  for (const ShardPlace& place : places) {
    auto opened = co_await ShardFiles::open(files, place, record);
    if (opened) {
      copies->opened_.push_back(std::move(*opened));
    } else {
      copies->unopened_.push_back(std::move(opened).error());
    }
  }
  if (copies->opened_.empty()) co_return fail(most_telling(std::move(copies->unopened_)));
  co_return copies;
}

Task<void> ShardCopies::close() {
  for (const auto& files : opened_) CKPT_CO_CHECK(co_await files->close());
  co_return Status();
}

Task<void> ShardCopies::read_chunk(std::size_t index, std::span<std::byte> bytes,
                                   const TransferHooks& hooks) {
  const Crc32 expected = record().chunk_crcs.at(index);
  ChunkCheck check = [bytes, expected] { return crc32(bytes) == expected; };
  Status read = co_await read_chunk(index, bytes, hooks, std::move(check));
  co_return read;
}

Task<void> ShardCopies::read_chunk(std::size_t index, std::span<std::byte> bytes,
                                   const TransferHooks& hooks, ChunkCheck check) {
  std::vector<Error> errors;
  for (const auto& files : opened_) {
    const Status read = co_await files->read_chunk(index, bytes, hooks, check);
    if (read) co_return Status();
    errors.push_back(read.error());
  }
  std::ranges::copy(unopened_, std::back_inserter(errors));
  co_return fail(most_telling(std::move(errors)));
}

Task<std::shared_ptr<const format::ShardRecord>> read_record_of(os::FileSystem& files,
                                                                std::vector<StepCopy> copies,
                                                                std::uint32_t rank) {
  std::vector<Error> errors;
  for (const StepCopy& copy : copies) {
    auto record = co_await read_record(files, copy.directory, copy.manifest, rank);
    if (record) co_return record;
    errors.push_back(std::move(record).error());
  }
  co_return fail(most_telling(std::move(errors)));
}

Task<std::vector<std::byte>> read_part_of(os::FileSystem& files, std::vector<StepCopy> copies,
                                          std::uint32_t rank) {
  const format::PartSeal& seal = copies.front().manifest->shards.at(rank).part;
  std::vector<Error> errors;
  for (const StepCopy& copy : copies) {
    const std::string path = os::join(
        shard_directory(copy.directory, copy.manifest->shards.at(rank)), format::part_name(rank));
    auto part = co_await files.read_small(path, format::part_bytes_max);
    Status sealed;
    if (!part) {
      sealed = fail(part.error());
    } else if (auto decoded = format::decode_shard_part(*part, seal); !decoded) {
      sealed = fail(std::move(decoded).error().context("read " + os::display(path)));
    }
    if (sealed) co_return part;
    errors.push_back(std::move(sealed).error());
  }
  co_return fail(most_telling(std::move(errors)));
}

std::vector<ShardPlace> places_of(const std::vector<StepCopy>& copies, std::uint32_t rank) {
  std::vector<ShardPlace> places;
  for (const StepCopy& copy : copies)
    places.push_back(shard_place(copy.directory, copy.manifest->shards.at(rank)));
  return places;
}

}  // namespace ckpt::storage
