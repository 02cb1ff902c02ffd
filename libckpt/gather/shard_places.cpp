#include "gather/shard_places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/assert.hpp"
#include "gather/copy_run.hpp"
#include "gather/run_checksum.hpp"

namespace ckpt::gather {

namespace {

using format::Extent;

// A Chunk whose bytes go to more places is copied there: many small reads, and many checksums that
// are combined, cost more than a copy.
constexpr std::size_t places_max = 8;

}  // namespace

void ShardPlaces::want_transfer(std::uint32_t number) {
  CKPT_ASSERT(number < facts_.plan.transfers.size());
  const plan::Transfer& transfer = facts_.plan.transfers[number];
  const plan::RunsInside runs(transfer);
  const std::uint64_t size = record_->chunk_bytes;
  for (std::size_t index = transfer.from / size; index * size < transfer.from_end(); ++index) {
    const std::uint64_t bytes = runs.bytes_in(index * size, (index + 1) * size);
    if (bytes == 0) continue;
    Work& work = work_[index];
    work.transfers.push_back(number);
    work.wanted_bytes += bytes;
  }
}

void ShardPlaces::want_bytes(std::uint32_t number) {
  CKPT_ASSERT(number < facts_.wants.bytes.size());
  const WantedBytes& wanted = facts_.wants.bytes[number];
  const std::uint64_t size = record_->chunk_bytes;
  const std::uint64_t end = wanted.offset + wanted.target.size();
  for (std::size_t index = wanted.offset / size; index * size < end; ++index) {
    Work& work = work_[index];
    work.bytes.push_back(number);
    const std::uint64_t from = std::max(index * size, wanted.offset);
    work.wanted_bytes += std::min((index + 1) * size, end) - from;
  }
}

std::vector<std::size_t> ShardPlaces::chunks() const {
  std::vector<std::size_t> chunks;
  for (const auto& [index, work] : work_) chunks.push_back(index);
  return chunks;
}

// Calls use(bytes of the target, their offset in the Chunk) for all that is wanted of it, until it
// returns false; then returns false, too. This may be a million times.
template <class Use>
bool ShardPlaces::for_each_until(std::size_t index, const Use& use) const {
  const Extent chunk = record_->chunk(index);
  const Work& work = work_.at(index);
  const auto use_stretch = [&](std::span<std::byte> target, const plan::TransferStretch& stretch) {
    CKPT_ASSERT(stretch.to + stretch.bytes <= target.size());
    CKPT_ASSERT(stretch.from >= chunk.offset);
    CKPT_ASSERT(stretch.from + stretch.bytes <= chunk.end());
    return use(target.subspan(stretch.to, stretch.bytes), stretch.from - chunk.offset);
  };
  for (const std::uint32_t number : work.transfers) {
    const plan::Transfer& transfer = facts_.plan.transfers[number];
    const std::span<std::byte> target = facts_.wants.pieces[transfer.want].target;
    const bool is_done = plan::RunsInside(transfer).for_each_until(
        chunk.offset, chunk.end(),
        [&](const plan::TransferStretch& stretch) { return use_stretch(target, stretch); });
    if (!is_done) return false;
  }
  for (const std::uint32_t number : work.bytes) {
    const WantedBytes& wanted = facts_.wants.bytes[number];
    const std::uint64_t from = std::max(chunk.offset, wanted.offset);
    const std::uint64_t to = std::min(chunk.end(), wanted.offset + wanted.target.size());
    if (!use_stretch(wanted.target, {from, from - wanted.offset, to - from})) return false;
  }
  return true;
}

template <class Use>
void ShardPlaces::for_each_place(std::size_t index, const Use& use) const {
  const auto use_all = [&](std::span<std::byte> target, std::uint64_t from) {
    use(target, from);
    return true;
  };
  for_each_until(index, use_all);
}

// Cuts a place where a Chunk of the targets ends.
template <class Use>
void ShardPlaces::for_each_part(std::span<std::byte> place, const Use& use) const {
  if (!facts_.targets) return use(place);
  const auto& [memory, chunk_bytes] = *facts_.targets;
  CKPT_ASSERT(place.data() >= memory.data());
  while (!place.empty()) {
    const auto at = static_cast<std::uint64_t>(place.data() - memory.data());
    const auto bytes = std::min<std::uint64_t>(place.size(), chunk_bytes - at % chunk_bytes);
    use(place.first(bytes));
    place = place.subspan(bytes);
  }
}

bool ShardPlaces::has_long_runs(std::size_t chunk) const {
  std::size_t places = 0;
  return for_each_until(
      chunk, [&](std::span<std::byte>, std::uint64_t) { return ++places <= places_max; });
}

std::uint64_t ShardPlaces::wanted_bytes(std::size_t chunk) const {
  return work_.at(chunk).wanted_bytes;
}

std::vector<std::span<std::byte>> ShardPlaces::places_of(std::size_t chunk) const {
  const std::uint64_t chunk_bytes = record_->chunk(chunk).bytes;
  if (wanted_bytes(chunk) != chunk_bytes) return {};
  std::map<std::uint64_t, std::span<std::byte>> found;  // By offset in the Chunk.
  std::size_t seen = 0;
  const bool are_few = for_each_until(chunk, [&](std::span<std::byte> target, std::uint64_t from) {
    if (target.empty()) return true;
    found.emplace(from, target);
    return ++seen <= places_max;
  });
  if (!are_few) return {};
  std::vector<std::span<std::byte>> places;
  std::uint64_t next = 0;
  for (const auto& [from, target] : found) {
    if (from != next) return {};
    next += target.size();
    for_each_part(target, [&](std::span<std::byte> part) { places.push_back(part); });
  }
  return next == chunk_bytes ? places : std::vector<std::span<std::byte>>();
}

std::string ShardPlaces::name_of(std::size_t chunk) const {
  const Work& work = work_.at(chunk);
  std::set<std::string_view> tensors;
  for (const std::uint32_t number : work.transfers)
    tensors.insert(facts_.wants.pieces[facts_.plan.transfers[number].want].want.name);
  if (tensors.empty()) return "what it has as a whole";
  std::string name = fmt::format("tensor \"{}\"", *tensors.begin());
  if (tensors.size() > 1) name += fmt::format(" and {} more", tensors.size() - 1);
  return name;
}

void ShardPlaces::copy(std::size_t chunk, std::span<const std::byte> bytes) {
  CKPT_ASSERT(bytes.size() == record_->chunk(chunk).bytes);
  Work& work = work_.at(chunk);
  work.sums.clear();
  if (facts_.targets && has_long_runs(chunk)) {
    for_each_place(chunk, [&](std::span<std::byte> target, std::uint64_t from) {
      for_each_part(target, [&](std::span<std::byte> part) {
        const Crc32 crc = crc32_copy(part, bytes.subspan(from, part.size()));
        work.sums.push_back({part.data(), part.size(), crc});
        from += part.size();
      });
    });
    return;
  }
  for_each_place(chunk, [&](std::span<std::byte> target, std::uint64_t from) {
    copy_run(target, bytes.data() + from);
  });
  if (!facts_.targets) return;
  // In a second turn: where rows are short, both at once take several times as long.
  RunChecksum checksum;
  for_each_place(chunk, [&](std::span<std::byte> target, std::uint64_t from) {
    checksum.add(bytes.subspan(from, target.size()));
  });
  work.copied = checksum.value();
}

void ShardPlaces::placed(std::size_t chunk, std::span<const Crc32> crcs) {
  if (!facts_.targets) return;
  const auto places = places_of(chunk);
  CKPT_ASSERT(places.size() == crcs.size());
  Work& work = work_.at(chunk);
  work.sums.clear();
  for (std::size_t number = 0; number < places.size(); ++number)
    work.sums.push_back({places[number].data(), places[number].size(), crcs[number]});
}

bool ShardPlaces::holds(std::size_t chunk) const {
  CKPT_ASSERT(facts_.targets);
  const Work& work = work_.at(chunk);
  CKPT_ASSERT(work.sums.empty());
  RunChecksum checksum;
  for_each_place(chunk, [&](std::span<std::byte> target, std::uint64_t) { checksum.add(target); });
  return checksum.value() == work.copied;
}

}  // namespace ckpt::gather
