// Goal:   what a coordinator keeps from one look to the next: how long it leaves storage alone
//         after failures, and nothing of its own that another one has taken over.
// Method: one coordinator, a small cluster whose reports are set by hand, and a time that is just a
//         number.
#include "agree/coordinator.hpp"

#include <catch2/catch.hpp>

#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;

namespace {

agree::CoordinatorOptions named_a() {
  agree::CoordinatorOptions options;
  options.node = "A";
  options.boot = 7;
  return options;
}

// Two ranks train on timeline 1; step 5 is committed, and each step is to be stored.
struct Storing {
  Storing() {
    scene.view.shape.has_storage = true;
    scene.view.shape.save_storage_interval.steps = 1;
    scene.train(1, 5);
    scene.hold_everywhere(1, 5);
  }
  // Whether a flush is ordered at this time.
  bool is_ordered_at(Duration since_start) {
    coordinator.decide(scene.view, now(since_start));
    return coordinator.decree().flush.has_value();
  }
  void answer_at(Duration since_start, const Status& status) {
    REQUIRE(coordinator.decree().flush);
    coordinator.published(coordinator.decree().flush->flush_id, status, now(since_start));
  }
  static Time now(Duration since_start) { return Time{} + std::chrono::hours(1) + since_start; }

  Scene scene{2};
  agree::Coordinator coordinator{named_a()};
};

const Status disk_full = fail(Errc::exhausted, "the disk is full");

}  // namespace

TEST_CASE("coordinator: a stuck flush makes room for a newer step, which other nodes write",
          "[unit][agree]") {
  Storing storing;
  const Duration stalled_after = agree::CoordinatorOptions{}.flush_stalled_after;
  REQUIRE(storing.is_ordered_at({}));
  const format::FlushOrder stuck = *storing.coordinator.decree().flush;
  const auto has_flush = [&](Duration at) {
    return storing.is_ordered_at(at) &&
           storing.coordinator.decree().flush->flush_id == stuck.flush_id;
  };
  auto& reports = storing.scene.view.reports;
  reports[0].flush.flush_id = stuck.flush_id;
  reports[0].flush.done = {{0, 0, test::digest(7)}};
  // Node A's copy of rank 1 is freed by now.
  std::erase_if(reports[0].holdings, [](const format::Holding& held) { return held.id.rank == 1; });
  REQUIRE(has_flush(stalled_after));
  CHECK(storing.coordinator.decree().degraded.find("node B writes rank 1 of step 5 and makes no") !=
        std::string::npos);

  storing.scene.train(1, 6);
  storing.scene.hold(0, 1, 6, 0);
  storing.scene.hold(1, 1, 6, 1);
  storing.scene.view.shape.replicas = 1;
  REQUIRE(has_flush(stalled_after));
  REQUIRE(storing.coordinator.decree().committed == format::StepId{1, Step{6}});
  // Nobody else could write the newer one either, until another node has its copies, too.
  storing.scene.hold(0, 1, 6, 1);
  REQUIRE_FALSE(storing.is_ordered_at(stalled_after));
  REQUIRE(storing.is_ordered_at(stalled_after + std::chrono::seconds(2)));
  const format::FlushOrder& next = *storing.coordinator.decree().flush;
  CHECK(next.at == format::StepId{1, Step{6}});
  CHECK(next.writers == std::vector<format::FlushWriter>{{"A", 0}, {"A", 0}});
  storing.answer_at(stalled_after + std::chrono::seconds(2), {});

  storing.scene.train(1, 7);
  storing.scene.hold_everywhere(1, 7);
  REQUIRE(storing.is_ordered_at(std::chrono::hours(1)));  // It may be well again.
  CHECK(storing.coordinator.decree().flush->writers ==
        std::vector<format::FlushWriter>{{"A", 0}, {"B", 0}});
}

TEST_CASE("coordinator: a node that hung in an earlier flush writes when another one hangs",
          "[unit][agree]") {
  Storing storing;
  const Duration stalled_after = agree::CoordinatorOptions{}.flush_stalled_after;
  auto& reports = storing.scene.view.reports;
  REQUIRE(storing.is_ordered_at({}));
  reports[0].flush.flush_id = storing.coordinator.decree().flush->flush_id;
  reports[0].flush.done = {{0, 0, test::digest(7)}};
  REQUIRE(storing.is_ordered_at(stalled_after));  // B hangs: A writes its part, too.
  storing.answer_at(stalled_after, {});

  storing.scene.train(1, 6);
  storing.scene.hold_everywhere(1, 6);
  REQUIRE(storing.is_ordered_at(stalled_after));
  const format::FlushOrder stuck = *storing.coordinator.decree().flush;
  REQUIRE(stuck.writers == std::vector<format::FlushWriter>{{"A", 0}, {"A", 0}});
  reports[1].holdings.clear();
  storing.scene.train(1, 7);
  storing.scene.hold_everywhere(1, 7);
  REQUIRE(storing.is_ordered_at(2 * stalled_after - Duration(1)));
  REQUIRE(storing.coordinator.decree().flush->flush_id == stuck.flush_id);
  REQUIRE_FALSE(storing.is_ordered_at(2 * stalled_after));  // Now A hangs.
  REQUIRE(storing.is_ordered_at(2 * stalled_after + std::chrono::seconds(4)));
  const format::FlushOrder& next = *storing.coordinator.decree().flush;
  CHECK(next.at == format::StepId{1, Step{7}});
  CHECK(next.writers == std::vector<format::FlushWriter>{{"B", 0}, {"B", 0}});
}

TEST_CASE("coordinator: a flush that fails is tried again later and later, up to a limit",
          "[unit][agree]") {
  Storing storing;
  const Duration tick = std::chrono::milliseconds(1);
  Duration at = std::chrono::seconds(0);
  REQUIRE(storing.is_ordered_at(at));
  for (const int pause : {2, 4, 8, 16, 32, 60, 60}) {
    CAPTURE(pause);
    storing.answer_at(at, disk_full);
    CHECK_FALSE(storing.is_ordered_at(at + std::chrono::seconds(pause) - tick));
    at += std::chrono::seconds(pause);
    REQUIRE(storing.is_ordered_at(at));
  }
}

TEST_CASE("coordinator: who comes or waits for storage after failures finds it tried at once",
          "[unit][agree]") {
  Storing storing;
  Duration at = std::chrono::seconds(0);
  REQUIRE(storing.is_ordered_at(at));
  for (const int pause : {2, 4, 8, 16}) {
    storing.answer_at(at, disk_full);
    at += std::chrono::seconds(pause);
    REQUIRE(storing.is_ordered_at(at));
  }
  storing.answer_at(at, disk_full);
  const Duration soon = at + std::chrono::seconds(1);
  REQUIRE_FALSE(storing.is_ordered_at(soon));

  SECTION("a trainer that asks for a flush") {
    storing.scene.view.reports[1].flush.is_wanted = true;
  }
  SECTION("trainers that close") {
    for (auto& report : storing.scene.view.reports) report.ranks.front().is_closing = true;
  }
  SECTION("a trainer that was started again") {
    storing.scene.rank(1).session = 777;
  }
  REQUIRE(storing.is_ordered_at(soon));
  // The pause grows from the beginning, as long as it goes on failing.
  storing.answer_at(soon, disk_full);
  CHECK_FALSE(storing.is_ordered_at(soon + std::chrono::milliseconds(1999)));
  REQUIRE(storing.is_ordered_at(soon + std::chrono::seconds(2)));
  storing.answer_at(soon + std::chrono::seconds(2), disk_full);
  CHECK_FALSE(storing.is_ordered_at(soon + std::chrono::milliseconds(5999)));
}

TEST_CASE("coordinator: what kept the steps of one timeline from storage is not said of the next",
          "[unit][agree]") {
  Storing storing;
  agree::Coordinator& coordinator = storing.coordinator;
  REQUIRE(storing.is_ordered_at({}));
  for (const int at : {0, 2, 6}) {
    REQUIRE(storing.is_ordered_at(std::chrono::seconds(at)));
    storing.answer_at(std::chrono::seconds(at), disk_full);
  }
  coordinator.decide(storing.scene.view, Storing::now(std::chrono::seconds(7)));
  REQUIRE(coordinator.decree().degraded.find("the disk is full") != std::string::npos);
  const Time later = Storing::now(std::chrono::seconds(8));
  std::string still;
  std::optional<Step> wanted;
  SECTION("which goes on from an older step") {
    storing.scene.hold_everywhere(1, 3);
    wanted = Step{3};
  }
  SECTION("but of the step that it goes on from") {
    still = "step 5 is not stored: ";
  }
  storing.scene.all_ask();
  for (format::NodeReport& node : storing.scene.view.reports) node.ranks[0].wanted = wanted;
  coordinator.decide(storing.scene.view, later);
  for (format::NodeReport& node : storing.scene.view.reports) {
    node.ranks[0].phase = format::StartPhase::ready;
    node.ranks[0].start_id = coordinator.decree().start->start_id;
    node.ranks[0].attempt = coordinator.decree().start->attempt;
  }
  coordinator.decide(storing.scene.view, later);
  REQUIRE(coordinator.decree().start->outcome.is_go());
  CHECK(coordinator.decree().flush);
  CHECK(coordinator.decree().degraded.starts_with(still));
  CHECK(coordinator.decree().degraded.empty() == still.empty());
}

TEST_CASE("coordinator: after a flush that succeeds, the next failure is the first again",
          "[unit][agree]") {
  Storing storing;
  REQUIRE(storing.is_ordered_at(std::chrono::seconds(0)));
  storing.answer_at(std::chrono::seconds(0), disk_full);
  REQUIRE(storing.is_ordered_at(std::chrono::seconds(2)));
  storing.answer_at(std::chrono::seconds(2), {});
  CHECK(storing.coordinator.decree().durable == format::StepId{1, Step{5}});
  storing.scene.hold_everywhere(1, 6);
  storing.scene.train(1, 6);
  REQUIRE(storing.is_ordered_at(std::chrono::seconds(2)));
  storing.answer_at(std::chrono::seconds(2), disk_full);
  CHECK_FALSE(storing.is_ordered_at(std::chrono::milliseconds(3999)));
  CHECK(storing.is_ordered_at(std::chrono::seconds(4)));
}

TEST_CASE("coordinator: an answer about a flush that was given up changes nothing",
          "[unit][agree]") {
  Storing storing;
  REQUIRE(storing.is_ordered_at(std::chrono::seconds(0)));
  const std::uint64_t flush_id = storing.coordinator.decree().flush->flush_id;
  storing.coordinator.published(flush_id ^ 2, {}, Storing::now(std::chrono::seconds(1)));
  CHECK_FALSE(storing.coordinator.decree().durable);
  CHECK(storing.coordinator.decree().flush);
}

TEST_CASE("coordinator: a flush that ends while a Start is recorded has ended if it is refused",
          "[unit][agree]") {
  const Status status = GENERATE(Status(), disk_full);
  Storing storing;
  agree::Coordinator& coordinator = storing.coordinator;
  REQUIRE(storing.is_ordered_at({}));
  const std::uint64_t flush_id = coordinator.decree().flush->flush_id;
  storing.scene.all_ask();
  coordinator.decide(storing.scene.view, Storing::now(std::chrono::seconds(1)));
  for (format::NodeReport& node : storing.scene.view.reports) {
    node.ranks[0].phase = format::StartPhase::ready;
    node.ranks[0].start_id = coordinator.decree().start->start_id;
    node.ranks[0].attempt = coordinator.decree().start->attempt;
  }
  coordinator.decide(storing.scene.view, Storing::now(std::chrono::seconds(1)));
  REQUIRE(coordinator.unrecorded() != nullptr);
  REQUIRE(coordinator.decree().flush->flush_id != flush_id);  // The base is stored anew.
  coordinator.published(flush_id, status, Storing::now(std::chrono::seconds(2)));
  coordinator.refuse(coordinator.unrecorded()->start_id, Error(Errc::io, "cannot be recorded"));
  CHECK_FALSE(coordinator.decree().flush);
  CHECK(coordinator.decree().durable.has_value() == status.has_value());
}

TEST_CASE("coordinator: a former one does not take another's Start for its own", "[unit][agree]") {
  Scene scene(2);
  agree::Coordinator coordinator(named_a());
  scene.all_ask();
  coordinator.decide(scene.view, Storing::now(std::chrono::seconds(0)));
  REQUIRE(coordinator.unrecorded() != nullptr);
  const format::Start start = *coordinator.decree().start;
  coordinator.step_down();
  CHECK(coordinator.unrecorded() == nullptr);
  CHECK_FALSE(coordinator.decree().start);
  // The other one has sent it to all, and they train on it; then this one coordinates again.
  scene.train(start.timeline, 3);
  for (format::NodeReport& report : scene.view.reports) report.start = start;
  coordinator.decide(scene.view, Storing::now(std::chrono::seconds(9)));
  REQUIRE(coordinator.decree().start == start);
  CHECK(coordinator.unrecorded() == nullptr);
  coordinator.refuse(start.start_id, Error(Errc::io, "cannot be recorded"));
  CHECK(coordinator.decree().start->outcome.is_go());
}

TEST_CASE("coordinator: sequence numbers go on, whoever coordinated meanwhile", "[unit][agree]") {
  Storing storing;
  REQUIRE(storing.is_ordered_at(std::chrono::seconds(0)));
  const std::uint64_t before = storing.coordinator.decree().sequence;
  storing.coordinator.step_down();
  CHECK(storing.coordinator.decree().sequence >= before);
  CHECK_FALSE(storing.coordinator.decree().flush);
  storing.coordinator.decide(storing.scene.view, Storing::now(std::chrono::seconds(1)));
  CHECK(storing.coordinator.decree().sequence > before);
}

TEST_CASE("coordinator: a step that lost a part is named to those who wait for it",
          "[unit][agree]") {
  Storing storing;
  Scene& scene = storing.scene;
  agree::Coordinator& coordinator = storing.coordinator;
  scene.view.shape.save_storage_interval = {};
  coordinator.decide(scene.view, Storing::now({}));
  REQUIRE(coordinator.decree().committed == format::StepId{1, Step{5}});
  for (format::NodeReport& node : scene.view.reports)
    std::erase_if(node.holdings, [](const auto& held) { return held.id.rank == 1; });
  coordinator.decide(scene.view, Storing::now({}));
  CHECK(coordinator.decree().lost_part.empty());  // The next step takes its place.
  scene.view.reports[0].flush.is_wanted = true;
  scene.view.all_live = false;
  coordinator.decide(scene.view, Storing::now({}));
  CHECK(coordinator.decree().lost_part.empty());  // A node that may come has it, perhaps.
  scene.view.all_live = true;
  coordinator.decide(scene.view, Storing::now({}));
  CHECK(coordinator.decree().lost_part ==
        "step 5 cannot be stored: rank 1's part of it died with its nodes");
}
