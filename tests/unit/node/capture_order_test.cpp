// Goal:   each step of a rank is captured once, and none that it said it had passed; what a restore
//         left behind is never told as a step of the timeline that began meanwhile.
// Method: one engine and one trainer, driven by hand into each of these turns.
#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

struct Fresh {
  explicit Fresh(std::uint64_t bytes = 3 * KiB) : rank(disk, bytes) {
    disk.put_directory("/scratch");
  }
  // An engine for which each page is a Chunk, in place of the one that is there.
  void cut_into_pages() {
    REQUIRE(test::finish(rank.clock, test::start(rank.context, rank.engine->stop({}))));
    EngineOptions options;
    options.name = "A";
    options.boot = 8;
    options.memory_budget = 16 * MiB;
    options.chunk_bytes = page_bytes;
    rank.engine =
        std::make_unique<Engine>(rank.context.get_executor(),
                                 Seams{rank.clock, rank.memory, rank.files, *rank.front}, options);
  }

  test::MemoryDisk disk{1};
  test::OneRank rank;
};

void require_refused(const Status& status) {
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == Errc::invalid_argument);
}

}  // namespace

TEST_CASE("capture order: a step is begun once", "[unit][node]") {
  Fresh fresh;
  test::OneRank& rank = fresh.rank;
  REQUIRE(rank.begin_fresh());
  REQUIRE(rank.begin_capture(Step{4}));
  const std::uint32_t other = rank.granted.front();
  require_refused(rank.engine->call(rank.session, rank.begin_of(other, Step{4})));
  require_refused(rank.engine->call(rank.session, rank.begin_of(other, Step{3})));
  CHECK(rank.engine->call(rank.session, rank.begin_of(other, Step{5})));
}

TEST_CASE("capture order: a step that was skipped is not begun any more", "[unit][node]") {
  Fresh fresh;
  test::OneRank& rank = fresh.rank;
  REQUIRE(rank.begin_fresh());
  REQUIRE(rank.engine->call(rank.session, control::Skipped{Step{4}}));
  require_refused(rank.engine->call(rank.session, rank.begin_of(rank.granted.front(), Step{4})));
  REQUIRE(rank.engine->call(rank.session, control::Skipped{Step{2}}));  // Late, and no way back.
  require_refused(rank.engine->call(rank.session, rank.begin_of(rank.granted.front(), Step{3})));
  CHECK(rank.engine->call(rank.session, rank.begin_of(rank.granted.front(), Step{5})));
}

TEST_CASE("capture order: a Slot that was not granted is not begun", "[unit][node]") {
  Fresh fresh;
  test::OneRank& rank = fresh.rank;
  REQUIRE(rank.begin_fresh());
  const std::uint32_t slot = rank.granted.front();
  REQUIRE(rank.begin_capture(Step{4}));
  require_refused(
      rank.engine->call(rank.session, rank.begin_of(slot, Step{5})));  // It is being filled.
  // There is no such Slot, or no longer: the step is skipped, and not begun any more.
  REQUIRE(rank.engine->call(rank.session, control::Begin{99, 0, Step{6}}));
  require_refused(rank.engine->call(rank.session, rank.begin_of(rank.granted.front(), Step{6})));
}

TEST_CASE("capture order: a capture of an older timeline is not told in the newer one",
          "[unit][node]") {
  Fresh fresh(3 * MiB);
  fresh.cut_into_pages();  // Each Chunk's checksum is a turn of its own.
  test::OneRank& rank = fresh.rank;
  REQUIRE(rank.begin_fresh());
  const std::uint64_t older = rank.answer->timeline;
  // The trainer leaves the checksums to the engine and asks for a restore before they are taken:
  // with nothing committed, all begin anew.
  rank.capture(Step{4});
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{2, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.captured == Step{});  // They are still being taken.
  REQUIRE(rank.answer->timeline > older);
  rank.pass_until([&] { return rank.captured == Step{4}; });
  CHECK(rank.captured == Step{});
}

TEST_CASE("capture order: a capture that outlives a restore keeps its timeline", "[unit][node]") {
  Fresh fresh;
  test::OneRank& rank = fresh.rank;
  REQUIRE(rank.begin_fresh());
  const std::uint64_t older = rank.answer->timeline;
  REQUIRE(rank.begin_capture(Step{4}));
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{2, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.answer->timeline > older);
  REQUIRE(rank.end_capture(Step{4}));
  rank.pass_until([&] { return rank.captured == Step{4}; });
  CHECK(rank.captured == Step{});  // It is no step of the newer timeline.
}

}  // namespace ckpt::node
