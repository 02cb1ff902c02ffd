// Goal:   the lanes of the kernel for changed tensors copy all bytes of the parts that have
// changed,
//         wherever source and Slot lie, and not one of another part.
// Method: the kernel's lanes one after the other, on tensors at every address modulo 16 that lie
// one
//         behind the other in a Slot, so that they share words and parts; a byte that changes at
//         each place of a part; all against the plan of a plain copy.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "device/changed_copy_lane.hpp"
#include "device/cuda_fingerprint_plan.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

using device::FingerprintEntry;

namespace {

constexpr std::uint64_t part_bytes = device::fingerprint_entry_bytes;
constexpr std::byte untouched{0xee};

// Tensors: in memory of their own, and one behind the other in the Slot.
struct Tensors {
  void add(std::size_t bytes, std::size_t from) {
    auto& memory = memories.emplace_back(random_bytes(bytes + from + 32, pieces.size()));
    std::byte* const first =
        memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16);
    pieces.push_back({first + from, slot_bytes, bytes});
    slot_bytes += bytes;
  }
  std::byte& at(std::uint64_t offset) {
    const auto found = std::ranges::find_if(pieces, [&](const device::CopyPiece& piece) {
      return offset < piece.slot_offset + piece.bytes;
    });
    return const_cast<std::byte&>(found->source[offset - found->slot_offset]);
  }
  std::vector<FingerprintSums> sums(const device::FingerprintPlan& plan) const {
    std::vector<FingerprintSums> made(slot_bytes / part_bytes + 1);
    for (const FingerprintEntry& entry : plan.entries)
      for (unsigned lane = 0; lane < device::fingerprint_lanes; ++lane)
        device::add_entry(entry, part_bytes, lane, made[entry.slot_offset / part_bytes]);
    const auto count = static_cast<unsigned>(plan.fragments.size());
    for (unsigned i = 0; i < count; ++i)
      (void)device::add_fragments(plan.fragments.data(), count, i, part_bytes,
                                  made[plan.fragments[i].slot_offset / part_bytes]);
    return made;
  }

  std::vector<std::vector<std::byte>> memories;
  std::vector<device::CopyPiece> pieces;
  std::uint64_t slot_bytes = 0;
};

// As the kernel does. Returns the count of bytes.
std::uint64_t copy_changed(const device::FingerprintPlan& plan, const device::ChangedParts& parts,
                           std::byte* slot) {
  auto* const target = reinterpret_cast<unsigned char*>(slot);
  std::uint64_t bytes = 0;
  for (const FingerprintEntry& entry : plan.entries) {
    for (unsigned item = 0; item < device::changed_copy_items; ++item) {
      if (!device::has_changed(parts, entry)) continue;
      bytes += device::bytes_of_item(entry, item);
      for (unsigned lane = 0; lane < device::fingerprint_lanes; ++lane)
        device::copy_item(entry, item, target, lane);
    }
  }
  for (const FingerprintEntry& fragment : plan.fragments) {
    if (!device::has_changed(parts, fragment)) continue;
    bytes += fragment.bytes;
    device::copy_fragment(fragment, target);
  }
  return bytes;
}

Tensors some_tensors() {
  Tensors tensors;
  for (std::size_t from = 0; from < 16; ++from)
    for (const std::size_t bytes : {1, 3, 8, 17, 4097, 8192, 8193}) tensors.add(bytes, from);
  for (const std::size_t from : {0, 1, 8, 14}) tensors.add(2 * part_bytes + 5 + from, from);
  return tensors;
}

struct Slot {
  explicit Slot(std::uint64_t bytes) : memory(bytes + 16, untouched) {}
  std::byte* data() {
    return memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16;
  }
  std::vector<std::byte> memory;
};

}  // namespace

TEST_CASE("changed copy: where all has changed, the Slot has all bytes", "[unit][capture]") {
  Tensors tensors = some_tensors();
  const auto plan = device::plan_fingerprints(tensors.pieces, part_bytes);
  const auto now = tensors.sums(plan);
  const std::vector<FingerprintSums> before(now.size());
  Slot slot(tensors.slot_bytes);
  REQUIRE(copy_changed(plan, {part_bytes, now.data(), before.data()}, slot.data()) ==
          tensors.slot_bytes);
  for (std::uint64_t at = 0; at < tensors.slot_bytes; ++at) {
    if (slot.data()[at] == tensors.at(at)) continue;
    FAIL("byte " << at << " of " << tensors.slot_bytes);
  }
}

TEST_CASE("changed copy: a byte that changes brings its part, and no other", "[unit][capture]") {
  Tensors tensors = some_tensors();
  const auto plan = device::plan_fingerprints(tensors.pieces, part_bytes);
  const auto before = tensors.sums(plan);
  // Borders of parts, items, words and tensors, and what lies between.
  std::vector<std::uint64_t> places;
  for (std::uint64_t at = 0; at < tensors.slot_bytes; at += 4093) places.push_back(at);
  for (std::uint64_t at = part_bytes; at < tensors.slot_bytes; at += part_bytes)
    places.insert(places.end(), {at - 1, at});
  for (const device::CopyPiece& piece : tensors.pieces)
    places.insert(places.end(), {piece.slot_offset, piece.slot_offset + piece.bytes - 1});
  for (const std::uint64_t place : places) {
    tensors.at(place) ^= std::byte{1};
    const auto now = tensors.sums(plan);
    Slot slot(tensors.slot_bytes);
    const std::uint64_t begin = place / part_bytes * part_bytes;
    const std::uint64_t end = std::min(begin + part_bytes, tensors.slot_bytes);
    INFO("byte " << place);
    REQUIRE(copy_changed(plan, {part_bytes, now.data(), before.data()}, slot.data()) ==
            end - begin);
    REQUIRE(slot.data()[place] == tensors.at(place));
    REQUIRE(std::all_of(slot.data(), slot.data() + begin, [](auto b) { return b == untouched; }));
    REQUIRE(std::all_of(slot.data() + end, slot.data() + tensors.slot_bytes,
                        [](auto b) { return b == untouched; }));
    tensors.at(place) ^= std::byte{1};
  }
}

TEST_CASE("changed copy: each byte of a part counts", "[unit][capture]") {
  constexpr std::uint64_t small = 4096;  // A part, so that each of its bytes takes a turn.
  Tensors tensors;
  for (const std::size_t from : {0, 3, 8, 5}) tensors.add(small / 4, from);
  const auto plan = device::plan_fingerprints(tensors.pieces, small);
  const auto before = tensors.sums(plan).front();
  for (std::uint64_t place = 0; place < small; ++place) {
    tensors.at(place) ^= std::byte{0x80};
    const auto now = tensors.sums(plan).front();
    tensors.at(place) ^= std::byte{0x80};
    INFO("byte " << place);
    REQUIRE(device::has_changed({small, &now, &before}, plan.entries.front()));
  }
  REQUIRE_FALSE(device::has_changed({small, &before, &before}, plan.entries.front()));
}

}  // namespace ckpt::test
