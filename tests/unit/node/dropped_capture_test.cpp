// Goal:   a trainer hears at once that nothing comes of a capture which it began, and why is no
//         matter: it would wait for the step until its deadline.
// Method: one rank by hand. Captures that the engine refuses to begin or to seal, one after
// another.
#include "unit/node/one_rank.hpp"

namespace ckpt::node {

namespace {

class Told : public test::OneRank {
 public:
  using OneRank::OneRank;
  void tell(control::Event event) override {
    if (const auto* it = std::get_if<control::StepDropped>(&event)) dropped.push_back(it->step);
    OneRank::tell(std::move(event));
  }
  std::vector<Step> dropped;
};

}  // namespace

TEST_CASE("dropped capture: a trainer hears of a Slot that is not sealed", "[unit][node]") {
  test::MemoryDisk disk(1);
  Told rank(disk);
  rank.request.dir.clear();
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{5});
  REQUIRE(rank.pass_until([&] { return rank.captured == Step{5}; }));
  CHECK(rank.dropped.empty());

  SECTION("its layout is unknown") {
    REQUIRE(rank.begin_capture(Step{6}));
    control::Filled filled = rank.filled_of(rank.filling, Step{6});
    filled.layout_version = 77;
    CHECK_FALSE(rank.engine->call(rank.session, std::move(filled)));
  }
  SECTION("its checksums are not those of a Layout") {
    REQUIRE(rank.begin_capture(Step{6}));
    control::Filled filled = rank.filled_of(rank.filling, Step{6});
    filled.layout_version = rank.layout.version;
    filled.chunk_crcs.resize(3);
    CHECK_FALSE(rank.engine->call(rank.session, std::move(filled)));
  }
  SECTION("its blobs are not, as is found when the engine has taken the checksums") {
    REQUIRE(rank.begin_capture(Step{6}));
    control::Filled filled = rank.filled_of(rank.filling, Step{6});
    filled.layout_version = rank.layout.version;
    filled.blob_names = {"", ""};
    CHECK(rank.engine->call(rank.session, std::move(filled)));
  }
  SECTION("its Slot was replaced before it began") {
    control::Begin begin = rank.begin_of(rank.granted.front(), Step{6});
    ++begin.generation;
    CHECK(rank.engine->call(rank.session, begin));
  }
  SECTION("its Slot was not granted") {
    const std::uint32_t slot = rank.granted.front();
    REQUIRE(rank.begin_capture(Step{6}));
    CHECK_FALSE(rank.engine->call(rank.session, rank.begin_of(slot, Step{6})));
  }
  REQUIRE(rank.pass_until([&] { return !rank.dropped.empty(); }));
  CHECK(rank.dropped == std::vector{Step{6}});
}

}  // namespace ckpt::node
