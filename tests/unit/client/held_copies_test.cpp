// Goal:   ranks that divide a tensor compare all of it when a step will be stored, and the same
//         sample of it at other saves; equal memory makes equal notes, a difference another one.
// Method: the notes of several ranks, which give the same tensor in different words; a schedule
//         beside the coordinator's own rule.
#include "client/held_copies.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "agree/flush_rule.hpp"
#include "base/units.hpp"
#include "client/tensor_registry.hpp"

namespace ckpt::client {

namespace {

constexpr std::uint64_t elements = 5 * MiB;

// One of `copies` ranks with a matrix that they divide, and more that is not compared.
struct Rank {
  Rank(std::uint32_t copy, std::uint32_t copies, bool as_range = false)
      : matrix(elements), norm(16), own(elements) {
    std::iota(matrix.begin(), matrix.end(), std::uint8_t{0});
    TensorRef divided = tensor(matrix.data(), DType::u8, {elements});
    divided.piece = Piece{{elements}, {0}, {}, {}, copy, copies};
    if (as_range) divided.piece = Piece{{elements}, {}, 0, {}, copy, copies};
    TensorRef small = tensor(norm.data(), DType::u8, {16});
    small.piece = Piece{{16}, {0}, {}, {}, copy, copies};
    REQUIRE(registry.add("matrix", divided));
    REQUIRE(registry.add("tied", divided));
    REQUIRE(registry.add("norm", small));
    REQUIRE(registry.add("own", tensor(own.data(), DType::u8, {elements})));
  }
  std::vector<format::CopyNote> notes(Step step, Compared compared) {
    HeldCopies held(registry.held_copies());
    const auto sources = held.sources();
    std::vector<std::optional<Crc32>> crcs;
    const auto stretches = held.choose(step, compared);
    for (std::size_t index = 0; index < stretches.size(); ++index) {
      const device::Stretch& stretch = stretches[index];
      crcs.push_back(crc32(sources[index].bytes.subspan(stretch.offset, stretch.bytes)));
    }
    return held.notes(crcs);
  }
  std::vector<std::uint8_t> matrix, norm, own;
  TensorRegistry registry;
};

Options stored_every(Interval interval) {
  Options options;
  options.dir = "/somewhere";
  options.save_storage_interval = interval;
  return options;
}

}  // namespace

TEST_CASE("held copies: what ranks divide is compared whole, however they word it",
          "[unit][client]") {
  Rank one(0, 3);
  Rank other(2, 3, /*as_range=*/true);
  const auto notes = one.notes(Step{7}, Compared::all);
  REQUIRE(notes.size() == 1);  // Not the small one, which is captured whole, nor one's own.
  CHECK(notes.front().name == "matrix");
  CHECK(other.notes(Step{7}, Compared::all) == notes);
  other.matrix.back() ^= 1;
  const auto differing = other.notes(Step{7}, Compared::all);
  CHECK(differing.front().identity == notes.front().identity);
  CHECK(differing.front().crc != notes.front().crc);
}

TEST_CASE("held copies: samples of all ranks are of the same bytes, and find a difference in time",
          "[unit][client]") {
  Rank one(0, 2);
  Rank other(1, 2);
  other.matrix[elements / 2] ^= 1;
  std::size_t differences = 0;
  std::size_t samples = 0;
  for (std::uint64_t step = 10; step <= 1000; step += 10) {
    const auto here = one.notes(Step{step}, Compared::sample);
    const auto there = other.notes(Step{step}, Compared::sample);
    REQUIRE(here.size() == there.size());
    for (std::size_t index = 0; index < here.size(); ++index) {
      REQUIRE(here[index].identity == there[index].identity);
      CHECK(here[index].identity != one.notes(Step{step}, Compared::all).front().identity);
      differences += here[index].crc != there[index].crc;
    }
    samples += here.size();
  }
  CHECK(samples < 40);  // Of 100 steps: a sample is a thirty-second of the bytes.
  CHECK(differences > 0);
  CHECK(differences < samples);
}

TEST_CASE("held copies: nothing is hashed of one rank alone, or when it is not asked for",
          "[unit][client]") {
  CHECK(Rank(0, 1).registry.held_copies().empty());
  Rank rank(0, 2);
  CHECK(rank.notes(Step{1}, Compared::nothing).empty());
}

TEST_CASE("held copies: the saves that are stored compare all", "[unit][client]") {
  const Interval every{10, {}};
  CompareSchedule schedule(stored_every(every));
  agree::JobShape shape;
  shape.save_storage_interval = every;
  agree::FlushHistory history;
  for (const std::uint64_t step : {3u, 9u, 10u, 11u, 19u, 24u, 25u, 30u, 51u}) {
    const format::StepId at{1, Step{step}};
    const bool is_stored = agree::is_flush_due(shape, at, history, Time{}, false);
    if (is_stored) history.newest = at;
    CHECK((schedule.next(Step{step}) == Compared::all) == is_stored);
  }
}

TEST_CASE("held copies: by the clock, each save compares a sample", "[unit][client]") {
  CompareSchedule schedule(stored_every({0, std::chrono::minutes(30)}));
  CHECK(schedule.next(Step{100}) == Compared::sample);
  CHECK(schedule.next(Step{200}) == Compared::sample);
}

TEST_CASE("held copies: a restore begins the count anew", "[unit][client]") {
  CompareSchedule schedule(stored_every({10, {}}));
  CHECK(schedule.next(Step{35}) == Compared::all);
  schedule.restart(Step{19});
  CHECK(schedule.next(Step{21}) == Compared::all);
}

TEST_CASE("held copies: without a directory, or switched off, nothing is compared",
          "[unit][client]") {
  Options options = stored_every({10, {}});
  options.compare_copies = false;
  CHECK(CompareSchedule(options).next(Step{10}) == Compared::nothing);
  options.compare_copies = true;
  options.dir.clear();
  CHECK(CompareSchedule(options).next(Step{10}) == Compared::nothing);
}

}  // namespace ckpt::client
