// Goal:   a flush goes on when a node is lost, fails or hangs, as long as another one holds the
//         part; what is done stays done, and the turn that is done first counts.
// Method: scenes of two and three nodes, looked at by hand.
#include "agree/flush_parts.hpp"

#include <catch2/catch.hpp>

#include "unit/agree/scene.hpp"

using ckpt::test::digest;
using ckpt::test::Scene;

namespace ckpt::agree {

namespace {

constexpr Duration stalled_after = std::chrono::seconds(60);

struct Flushing : Scene {
  explicit Flushing(std::uint32_t nodes) : Scene(nodes) {
    hold_everywhere(1, 4);
    format::FlushOrder order;
    order.flush_id = 9;
    order.at = {1, Step{4}};
    parts = FlushParts::make(view, order, {}, now);
    REQUIRE(parts);
  }
  format::FlushReport& report(std::size_t node) {
    view.reports[node].flush.flush_id = 9;
    return view.reports[node].flush;
  }
  void finish(std::size_t node, std::uint32_t rank, std::uint32_t turn) {
    report(node).done.push_back({rank, turn, digest(7 + rank)});
  }
  FlushProgress look(Duration later = {}) {
    now += later;
    return parts->look(view, now, stalled_after);
  }
  const format::FlushWriter& writer(std::size_t rank) const { return parts->order().writers[rank]; }

  Time now{};
  std::optional<FlushParts> parts;
};

}  // namespace

TEST_CASE("flush parts: own nodes write, and all parts make it complete", "[unit][agree]") {
  Flushing flush(2);
  REQUIRE(flush.writer(0) == format::FlushWriter{"A", 0});
  REQUIRE(flush.writer(1) == format::FlushWriter{"B", 0});
  flush.finish(0, 0, 0);
  REQUIRE(flush.look() == FlushProgress::running);
  flush.finish(1, 1, 0);
  REQUIRE(flush.look() == FlushProgress::complete);
  REQUIRE(flush.parts->digests() == std::vector<Digest>{digest(7), digest(8)});
}

TEST_CASE("flush parts: the part of a lost node goes to a holder", "[unit][agree]") {
  Flushing flush(3);
  flush.lose(1);  // B: its rank 1 is held by C, too.
  REQUIRE(flush.look() == FlushProgress::running);
  REQUIRE(flush.writer(1) == format::FlushWriter{"C", 1});
  REQUIRE(flush.writer(0).turn == 0);
}

TEST_CASE("flush parts: a finished part stays when its node goes", "[unit][agree]") {
  Flushing flush(3);
  flush.finish(1, 1, 0);
  REQUIRE(flush.look() == FlushProgress::running);
  flush.lose(1);
  flush.finish(0, 0, 0);
  flush.finish(1, 2, 0);  // C, now the second.
  REQUIRE(flush.look() == FlushProgress::complete);
}

TEST_CASE("flush parts: the only holder is waited for, lost or hung, and named", "[unit][agree]") {
  Flushing flush(2);
  flush.finish(0, 0, 0);
  std::erase_if(flush.view.reports[0].holdings,
                [](const format::Holding& holding) { return holding.id.rank == 1; });
  const format::NodeReport b = flush.view.reports[1];
  flush.lose(1);
  REQUIRE(flush.look() == FlushProgress::running);
  REQUIRE(flush.parts->stuck() == "node B was lost while it wrote rank 1 of step 4");
  REQUIRE(flush.parts->hung().empty());

  flush.view.reports.push_back(b);
  REQUIRE(flush.look() == FlushProgress::running);
  REQUIRE(flush.parts->stuck().empty());
  REQUIRE(flush.look(stalled_after) == FlushProgress::running);
  REQUIRE(flush.parts->stuck() == "node B writes rank 1 of step 4 and makes no progress");
  REQUIRE(flush.parts->hung() == std::set<std::string>{"B"});

  flush.finish(1, 1, 0);
  REQUIRE(flush.look() == FlushProgress::complete);
  REQUIRE(flush.parts->stuck().empty());
  REQUIRE_FALSE(flush.parts->had_several_writers());
}

TEST_CASE("flush parts: a writer that makes no progress loses its part at the deadline",
          "[unit][agree]") {
  Flushing flush(2);
  flush.finish(0, 0, 0);
  flush.report(1).progress = 1;
  REQUIRE(flush.look(stalled_after / 2) == FlushProgress::running);
  flush.look(stalled_after - Duration(1));
  REQUIRE(flush.writer(1) == format::FlushWriter{"B", 0});  // It got on in between.
  REQUIRE(flush.look(Duration(1)) == FlushProgress::running);
  REQUIRE(flush.writer(1) == format::FlushWriter{"A", 1});
  flush.look(stalled_after - Duration(1));
  REQUIRE(flush.writer(1) == format::FlushWriter{"A", 1});  // Its deadline begins anew.
  flush.finish(0, 1, 1);
  REQUIRE(flush.look() == FlushProgress::complete);
  REQUIRE(flush.writer(1) == format::FlushWriter{"A", 1});
  REQUIRE(flush.parts->had_several_writers());
}

TEST_CASE("flush parts: the turn that is done first counts", "[unit][agree]") {
  Flushing flush(2);
  flush.finish(0, 0, 0);
  flush.look(stalled_after);
  REQUIRE(flush.writer(1) == format::FlushWriter{"A", 1});
  SECTION("the first writer, though its part was given away") {
    flush.finish(1, 1, 0);
    REQUIRE(flush.look() == FlushProgress::complete);
    REQUIRE(flush.writer(1) == format::FlushWriter{"B", 0});
    flush.finish(0, 1, 1);
    REQUIRE(flush.look() == FlushProgress::complete);
    REQUIRE(flush.writer(1) == format::FlushWriter{"B", 0});
  }
  SECTION("not one that speaks of a turn of another node, or of another save") {
    flush.finish(1, 1, 1);
    flush.report(1).done.push_back({1, 0, digest(99)});
    REQUIRE(flush.look() == FlushProgress::running);
    REQUIRE(flush.writer(1) == format::FlushWriter{"A", 1});
  }
  REQUIRE(flush.parts->had_several_writers());
}

TEST_CASE("flush parts: a node that hung before writes what nobody else holds", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  std::erase_if(scene.view.reports[0].holdings,
                [](const format::Holding& held) { return held.id.rank == 1; });
  format::FlushOrder order;
  order.at = {1, Step{4}};
  const auto parts = FlushParts::make(scene.view, order, {"A", "B"}, Time{});
  REQUIRE(parts);
  REQUIRE(parts->order().writers == std::vector<format::FlushWriter>{{"A", 0}, {"B", 0}});
  const auto without_a = FlushParts::make(scene.view, order, {"A"}, Time{});
  REQUIRE(without_a);
  REQUIRE(without_a->order().writers == std::vector<format::FlushWriter>{{"B", 0}, {"B", 0}});
}

TEST_CASE("flush parts: each holder is tried once", "[unit][agree]") {
  Flushing flush(2);
  flush.report(1).failed.push_back({1, 0, "disk full"});
  REQUIRE(flush.look() == FlushProgress::running);
  flush.report(0).failed.push_back({1, 1, "disk full"});
  REQUIRE(flush.look() == FlushProgress::failed);
  REQUIRE(flush.parts->failure() == "node A: disk full");
}

}  // namespace ckpt::agree
