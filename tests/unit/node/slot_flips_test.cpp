// Goal:   one flipped bit in a sealed Slot never reaches a trainer: another copy is used, and where
//         there is none the restore says so, instead of that there never was a checkpoint.
// Method: steps are captured by a whole engine; then a bit of the newest one's Slot is flipped, one
//         byte after the other, and a trainer that verifies what it is offered, as the library
//         does, restores.
#include <catch2/catch.hpp>

#include "support/captured_log.hpp"
#include "support/sanitized.hpp"
#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

// Under a sanitizer, which is ten times slower, fewer bytes.
constexpr std::size_t slot_stride = test::is_sanitized ? 997 : 61;

struct SlotFlipOutcome {
  std::optional<Step> step;
  std::optional<Error> error;
  bool is_wrong = false;
  std::size_t refused = 0;  // Offers in which the trainer found the damage.
  std::size_t slot_bytes = 0;
};

// Captures steps 1 and 2, flips a bit of the Slot of step 2, and restores.
SlotFlipOutcome restore_after_flip(bool has_storage, std::size_t at) {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.verifies_offers = true;
  if (has_storage) {
    rank.request.save_storage_interval = {1, {}};
  } else {
    rank.request.dir.clear();
  }
  REQUIRE(rank.begin_fresh());
  for (const std::uint64_t step : {1u, 2u}) {
    REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.capture(Step{step});
    REQUIRE(rank.pass_until(
        [&] { return (has_storage ? rank.durable : rank.committed) == Step{step}; }));
  }
  SlotFlipOutcome outcome;
  outcome.slot_bytes = format::covered_bytes(rank.layout, 0);
  const std::span<std::byte> slot = rank.bytes_of(rank.filling);
  slot[at % outcome.slot_bytes] ^= static_cast<std::byte>(1 << (at % 8));
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  if (rank.answer->restored) outcome.step = rank.answer->restored->step;
  if (!rank.answer->result) outcome.error = rank.answer->result.error();
  outcome.is_wrong = rank.is_wrong;
  outcome.refused = rank.offers_refused;
  return outcome;
}

}  // namespace

TEST_CASE("slot flips: another copy is used, and without one a restore does not say there was none",
          "[unit][node]") {
  const bool has_storage = GENERATE(true, false);
  const test::CapturedLog quiet(LogLevel::error);
  std::size_t flips = 0;
  for (std::size_t at = 0, end = 1; at < end; at += slot_stride) {
    const SlotFlipOutcome outcome = restore_after_flip(has_storage, at);
    end = outcome.slot_bytes;
    INFO("byte " << at << " of " << end << ": "
                 << (outcome.error ? outcome.error->message() : "no error"));
    REQUIRE_FALSE(outcome.is_wrong);
    REQUIRE(outcome.refused == 1);  // Found, and not offered a second time.
    if (has_storage) {
      REQUIRE(outcome.step == Step{2});
    } else {
      REQUIRE(outcome.error);
      REQUIRE(outcome.error->code() == Errc::corruption);
    }
    ++flips;
  }
  REQUIRE(flips > 5);
}

}  // namespace ckpt::node
