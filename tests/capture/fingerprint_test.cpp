// Goal:   the lanes of the fingerprint kernel add each word of a tensor once, as the processor
//         does, for each alignment of a tensor's address and of its place; and words that several
//         tensors share count once.
// Method: the lanes of a warp on memory of the host, against base/fingerprint; plans on paper; and
//         the driver's refusals. tests/gpu/fingerprint_test.cpp launches the kernel.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/fingerprint.hpp"
#include "base/units.hpp"
#include "device/cuda_fingerprint.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

using device::CopyPiece;
using device::CudaFingerprint;
using device::FingerprintPlan;
using device::plan_fingerprints;

namespace {

constexpr std::size_t chunk_bytes = 128 * KiB;

// The kernel's result for the plan, for the one Chunk in which all of it lies.
FingerprintSum sum_of(const FingerprintPlan& plan) {
  FingerprintSums sums;
  for (const device::FingerprintEntry& entry : plan.entries)
    for (unsigned lane = 0; lane < device::fingerprint_lanes; ++lane)
      add_entry(entry, chunk_bytes, lane, sums);
  const auto count = static_cast<unsigned>(plan.fragments.size());
  for (unsigned i = 0; i < count; ++i)
    device::add_fragments(plan.fragments.data(), count, i, chunk_bytes, sums);
  return FingerprintSum(sums);
}

// Memory that a wrong read is seen in: it ends with the bytes.
std::vector<std::byte> place(const std::vector<std::byte>& content, std::size_t from) {
  std::vector<std::byte> memory(from);
  memory.insert(memory.end(), content.begin(), content.end());
  memory.shrink_to_fit();
  return memory;
}

}  // namespace

TEST_CASE("fingerprint kernel: each word counts once, for each alignment of address and place",
          "[unit][device]") {
  for (std::size_t from = 0; from <= 16; ++from) {
    for (std::size_t to = 0; to < 8; ++to) {
      for (const std::size_t bytes : {0, 1, 7, 8, 9, 16, 17, 24, 264, 1021, 4096, 4103}) {
        const auto content = random_bytes(bytes, 1 + bytes * 7 + from * 3 + to);
        const auto memory = place(content, from);
        const CopyPiece piece{memory.data() + from, to, bytes};
        std::vector<std::byte> chunk(to);
        chunk.insert(chunk.end(), content.begin(), content.end());
        FingerprintSum expected;
        if (bytes > 0) expected.add(chunk, 0);
        INFO(bytes << " bytes from " << from << " to " << to);
        REQUIRE(sum_of(plan_fingerprints({&piece, 1}, chunk_bytes)).finish(7) ==
                expected.finish(7));
      }
    }
  }
}

TEST_CASE("fingerprint kernel: tensors that share words", "[unit][device]") {
  std::vector<std::vector<std::byte>> memories;
  std::vector<CopyPiece> pieces;
  std::vector<std::byte> chunk;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t bytes = i % 3 == 0 ? 1 + i % 29 : 1 + i % 4;
    const auto content = random_bytes(bytes, i + 1);
    memories.push_back(place(content, i % 11));
    pieces.push_back({memories.back().data() + i % 11, chunk.size(), bytes});
    chunk.insert(chunk.end(), content.begin(), content.end());
    if (i % 7 != 0) continue;
    // Zeros between them, of which some fill a word; those that do add nothing here.
    const std::size_t zeros = i % 5;
    pieces.push_back({nullptr, chunk.size(), zeros});
    chunk.resize(chunk.size() + zeros);
  }
  FingerprintSum expected;
  expected.add(chunk, 0);
  REQUIRE(sum_of(plan_fingerprints(pieces, chunk_bytes)).finish(chunk.size()) ==
          expected.finish(chunk.size()));
}

TEST_CASE("fingerprint kernel: a plan has whole words in one Chunk, and fragments around them",
          "[unit][device]") {
  const auto* const source = reinterpret_cast<const std::byte*>(8 * GiB);
  const std::vector<CopyPiece> pieces = {{source, 3, 2},
                                         {nullptr, 5, 8},
                                         {source + 256, 13, 300 * KiB},
                                         {nullptr, 13 + 300 * KiB, 100},
                                         {source + MiB, 113 + 300 * KiB, 1}};
  const FingerprintPlan plan = plan_fingerprints(pieces, chunk_bytes);
  REQUIRE(plan.fragments.size() == 4);
  CHECK(plan.fragments[0].slot_offset == 3);
  CHECK(plan.fragments[0].bytes == 2);
  CHECK(plan.fragments[1].slot_offset == 13);
  CHECK(plan.fragments[1].bytes == 3);
  CHECK(plan.fragments[2].source == 8 * GiB + 256 + 300 * KiB - 5);
  CHECK(plan.fragments[2].bytes == 5);
  CHECK(plan.fragments[3].bytes == 1);
  std::uint64_t at = 16;
  for (const device::FingerprintEntry& entry : plan.entries) {
    CHECK(entry.slot_offset == at);
    CHECK(entry.source == 8 * GiB + 256 + at - 13);
    CHECK(entry.bytes > 0);
    CHECK(entry.bytes % 8 == 0);
    CHECK(entry.bytes <= device::fingerprint_entry_bytes);
    CHECK(entry.slot_offset / chunk_bytes == (entry.slot_offset + entry.bytes - 1) / chunk_bytes);
    at += entry.bytes;
  }
  CHECK(at == 8 + 300 * KiB);
  CHECK(plan_fingerprints({}, chunk_bytes).entries.empty());
}

TEST_CASE("fingerprint kernel: a driver's refusals are errors that say so", "[unit][device]") {
  const auto load = [](const char* words) {
    StandInTrainer trainer(words);
    CudaFingerprint kernel(trainer.driver());
    const Status loaded = kernel.load(static_cast<CUstream>(trainer.stream().handle));
    REQUIRE(kernel.is_usable() == loaded.has_value());
    return loaded ? std::string() : loaded.error().message();
  };
  CHECK(load("") == "");
  CHECK_THAT(load("refuses_ptx=1"), Catch::Contains("load the kernel for fingerprints"));
  CHECK_THAT(load("fail_launch=1"), Catch::Contains("launch the kernel for fingerprints"));
}

}  // namespace ckpt::test
