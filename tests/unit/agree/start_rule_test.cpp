// Goal:   a group of trainers begins together from one step, or not at all.
// Method: reports of each phase set by hand; the decision is fed back as the coordinator would.

#include "agree/start_rule.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "agree/coordinator.hpp"
#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;
using format::StartPhase;

namespace {

// Every rank answers the Start with `phase`.
void answer(Scene& scene, const format::Start& start, StartPhase phase) {
  for (std::size_t rank = 0; rank < scene.view.reports.size(); ++rank) {
    scene.rank(rank).phase = phase;
    scene.rank(rank).start_id = start.start_id;
    scene.rank(rank).attempt = start.attempt;
    if (phase == StartPhase::running) scene.rank(rank).timeline = start.timeline;
  }
}

}  // namespace

TEST_CASE("start: nobody begins before every rank has asked", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  Random random(1);
  scene.rank(0).phase = StartPhase::asks;
  const auto decision = agree::decide_start(scene.view, {}, false, random);
  REQUIRE_FALSE(decision.next.has_value());
  REQUIRE(decision.waiting == "rank 1 has not asked to restore or to begin (1 of 2 ranks)");

  scene.rank(1).phase = StartPhase::running;
  const auto beside_one_that_trains = agree::decide_start(scene.view, {}, false, random);
  REQUIRE_FALSE(beside_one_that_trains.next.has_value());
  REQUIRE(beside_one_that_trains.waiting ==
          "rank 1 trains, and has not asked to restore (1 of 2 ranks)");
}

TEST_CASE("start: all ask, all copy, all go", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  Random random(1);
  agree::StartState state;
  state.current = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(state.current.has_value());
  REQUIRE(state.current->base == format::StepId{1, Step{4}});
  REQUIRE(state.current->timeline >= 2);
  REQUIRE_FALSE(state.current->outcome.is_go());

  answer(scene, *state.current, StartPhase::ready);
  scene.rank(1).phase = StartPhase::asks;
  REQUIRE_FALSE(agree::decide_start(scene.view, state, false, random).next.has_value());
  scene.rank(1).phase = StartPhase::ready;
  const auto went = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(went.has_value());
  REQUIRE(went->outcome.is_go());
}

TEST_CASE("start: reports of before the end of a Start do not begin another", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  Random random(1);
  agree::StartState state;
  state.current = agree::decide_start(scene.view, state, false, random).next;
  answer(scene, *state.current, StartPhase::ready);
  state.current = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(state.current->outcome.is_go());
  REQUIRE_FALSE(agree::decide_start(scene.view, state, false, random).next.has_value());
}

TEST_CASE("start: a rank that fails makes all vote again without its copy", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  Random random(1);
  agree::StartState state;
  state.current = agree::decide_start(scene.view, state, false, random).next;
  answer(scene, *state.current, StartPhase::ready);
  scene.rank(1).phase = StartPhase::failed;
  for (format::NodeReport& node : scene.view.reports) {
    std::erase_if(node.holdings, [](const format::Holding& holding) {
      return holding.id == format::ShardId{{1, Step{4}}, 1};
    });
  }
  const auto again = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(again.has_value());
  REQUIRE(again->attempt == 2);
  REQUIRE(again->base == format::StepId{1, Step{3}});
  REQUIRE(again->start_id == state.current->start_id);

  // All said "ready" to the attempt before.
  answer(scene, *state.current, StartPhase::ready);
  state.current = again;
  CHECK_FALSE(agree::decide_start(scene.view, state, false, random).next.has_value());
  answer(scene, *again, StartPhase::ready);
  const auto went = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(went.has_value());
  CHECK(went->outcome.is_go());
}

TEST_CASE("start: ranks that ask for different steps begin from none", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  scene.rank(0).wanted = Step{3};
  scene.rank(1).wanted = Step{4};
  Random random(1);
  const auto refused = agree::decide_start(scene.view, {}, false, random).next;
  REQUIRE(refused.has_value());
  CHECK_FALSE(refused->outcome.is_go());
  CHECK(refused->outcome.error() == Errc::invalid_argument);
}

TEST_CASE("start: a shard that a trainer refuses is not tried from elsewhere", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  Random random(1);
  agree::StartState state;
  state.current = agree::decide_start(scene.view, state, false, random).next;
  answer(scene, *state.current, StartPhase::ready);
  scene.rank(1).phase = StartPhase::refused;
  scene.rank(1).failure_code = GENERATE(Errc{}, Errc::invalid_argument);
  const bool has_code = scene.rank(1).failure_code != Errc{};
  scene.rank(1).failure =
      has_code ? "invalid argument: the tensor has another shape" : "the tensor has another shape";
  const auto ended = agree::decide_start(scene.view, state, false, random).next;
  REQUIRE(ended.has_value());
  REQUIRE(ended->attempt == 1);
  REQUIRE(ended->outcome.error() == Errc::invalid_argument);
  REQUIRE(ended->reason == "rank 1: the tensor has another shape");
}

TEST_CASE("start: a reported copy that can never be had is not tried without end",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.all_ask();
  agree::Coordinator coordinator({"A", 1});
  const Time first{std::chrono::seconds(1)};
  Time now = first;
  coordinator.decide(scene.view, now);
  // The first attempts follow one another at once; from then on each waits for a while.
  std::uint64_t prompt = 0;
  for (int looks = 0; coordinator.decree().start->outcome.error() == Errc{}; ++looks) {
    REQUIRE(looks < 200);
    answer(scene, *coordinator.decree().start, StartPhase::failed);
    scene.rank(1).failure = "no good copy";
    const std::uint64_t before = coordinator.decree().start->attempt;
    coordinator.decide(scene.view, now);
    if (now == first) prompt = coordinator.decree().start->attempt;
    if (coordinator.decree().start->attempt == before) now += std::chrono::milliseconds(250);
  }
  REQUIRE(prompt == 4);
  const format::Start& start = *coordinator.decree().start;
  REQUIRE(start.attempt == agree::start_attempts_max);
  REQUIRE(start.outcome.error() == Errc::unavailable);
  REQUIRE(start.reason.find("32 attempts") != std::string::npos);
  REQUIRE_FALSE(start.outcome.is_go());
}

TEST_CASE("start: without any checkpoint all begin at the beginning, at once", "[unit][agree]") {
  Scene scene(2);
  scene.all_ask();
  Random random(1);
  const auto start = agree::decide_start(scene.view, {}, false, random).next;
  REQUIRE(start.has_value());
  REQUIRE(start->outcome.is_go());
  REQUIRE_FALSE(start->base);
}

TEST_CASE("start: a timeline is above every one that a node has heard of", "[unit][agree]") {
  Scene scene(2);
  scene.all_ask();
  scene.view.reports[1].committed = format::StepId{4'000'000'000'000, Step{26}};
  Random random(1);
  auto decision = agree::decide_start(scene.view, {}, false, random);
  REQUIRE(decision.next);
  CHECK(decision.next->timeline > 4'000'000'000'000);
  scene.view.reports[0].durable = {{5'000'000'000'000, Step{3}}};
  decision = agree::decide_start(scene.view, {}, false, random);
  CHECK(decision.next->timeline > 5'000'000'000'000);
}

TEST_CASE("start: a request for one step never begins from nothing instead", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.all_ask(Step{7});
  Random random(1);
  const auto start = agree::decide_start(scene.view, {}, false, random).next;
  REQUIRE(start.has_value());
  REQUIRE_FALSE(start->outcome.is_go());
  REQUIRE(start->outcome.error() == Errc::not_found);
}

TEST_CASE("start: restoring and starting fresh do not mix", "[unit][agree]") {
  Scene scene(2);
  scene.all_ask();
  scene.rank(1).phase = StartPhase::fresh;
  Random random(1);
  const auto start = agree::decide_start(scene.view, {}, false, random).next;
  REQUIRE(start.has_value());
  REQUIRE(start->outcome.error() == Errc::invalid_argument);
}

TEST_CASE("start: a first save without a restore begins only where nothing is there",
          "[unit][agree]") {
  Scene scene(2);
  for (const std::size_t rank : {0, 1}) scene.rank(rank).phase = StartPhase::saves;
  Random random(1);
  const auto decide = [&](const agree::StartState& state = {}) {
    return agree::decide_start(scene.view, state, false, random);
  };
  SECTION("nothing") {
    const auto start = decide().next;
    REQUIRE(start);
    CHECK(start->outcome.is_go());
  }
  SECTION("a step in memory") {
    scene.hold_everywhere(1, 4);
    const auto start = decide().next;
    REQUIRE(start);
    CHECK(start->outcome.error() == Errc::invalid_argument);
    CHECK_FALSE(start->base);
    CHECK(start->reason.find("the job has step 4, and no rank asked for it") == 0);
    // A rank that says so begins without it, beside ranks that only save: then it is still refused.
    scene.rank(0).phase = StartPhase::fresh;
    CHECK(decide().next->outcome.error() == Errc::invalid_argument);
    scene.rank(1).phase = StartPhase::fresh;
    CHECK(decide().next->outcome.is_go());
  }
  SECTION("storage that was not read yet") {
    scene.view.published.reset();
    CHECK(decide().needs_published);
    CHECK_FALSE(decide().next);
    agree::StartState late;
    late.is_storage_late = true;
    const auto start = decide(late).next;
    REQUIRE(start);
    CHECK(start->outcome.is_go());
    CHECK(start->reason.find("storage did not answer") != std::string::npos);
  }
  SECTION("another rank restores") {
    scene.rank(0).phase = StartPhase::asks;
    CHECK(decide().next->outcome.error() == Errc::invalid_argument);
  }
}

TEST_CASE("start: a rank on two nodes is waited out", "[unit][agree]") {
  Scene scene(2);
  scene.all_ask();
  scene.view.reports[1].ranks.push_back(scene.rank(0));
  Random random(1);
  const auto decision = agree::decide_start(scene.view, {}, false, random);
  REQUIRE_FALSE(decision.next.has_value());
  REQUIRE(decision.waiting == "rank 0 is attached on two nodes");
}

TEST_CASE("start: the catalog of storage is read before anybody votes", "[unit][agree]") {
  Scene scene(1);
  scene.all_ask();
  scene.view.published.reset();
  Random random(1);
  const auto decision = agree::decide_start(scene.view, {}, false, random);
  REQUIRE(decision.needs_published);
  REQUIRE_FALSE(decision.next.has_value());
}

TEST_CASE("coordinator: a restore fences what lies above it, and counts", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.hold_everywhere(1, 4);
  scene.hold_everywhere(1, 5);
  scene.view.reports[0].committed = format::StepId{1, Step{5}};
  scene.all_ask(Step{4});
  agree::Coordinator coordinator({"A", 1});
  REQUIRE(coordinator.decide(scene.view, Time{}));
  const format::Start start = *coordinator.decree().start;
  answer(scene, start, StartPhase::ready);
  scene.rank(0).wanted = Step{4};
  REQUIRE(coordinator.decide(scene.view, Time{}));
  const format::Decree& decree = coordinator.decree();
  REQUIRE(decree.start->outcome.is_go());
  REQUIRE(decree.committed == format::StepId{1, Step{4}});
  REQUIRE(decree.history.back().base == format::StepId{1, Step{4}});
  REQUIRE(decree.restore_counts == std::vector<format::RestoreCount>{{{1, Step{4}}, 1}});
}

namespace {

// All ranks are ready to begin, from `wanted` or from the newest.
agree::Coordinator about_to_go(Scene& scene, std::optional<Step> wanted = std::nullopt,
                               std::uint64_t boot = 1) {
  scene.all_ask(wanted);
  agree::Coordinator coordinator({"A", boot});
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.unrecorded() == nullptr);  // It does not go yet.
  answer(scene, *coordinator.decree().start, StartPhase::ready);
  if (wanted) scene.rank(0).wanted = wanted;
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.unrecorded() != nullptr);
  return coordinator;
}

// All train from the newest step.
agree::Coordinator restored(Scene& scene) {
  agree::Coordinator coordinator = about_to_go(scene);
  answer(scene, *coordinator.decree().start, StartPhase::running);
  coordinator.decide(scene.view, Time{});
  return coordinator;
}

}  // namespace

TEST_CASE("coordinator: progress after a restore clears its step of suspicion", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.hold_everywhere(1, 4);
  agree::Coordinator coordinator = restored(scene);
  const auto times = [&] { return coordinator.decree().restore_counts.front().times; };
  REQUIRE(times() == 1);
  const std::uint64_t timeline = coordinator.decree().start->timeline;
  SECTION("the trainer says so") {
    scene.rank(0).restored_ok = true;
  }
  SECTION("a step of the new timeline is committed") {
    scene.train(timeline, 5);
    scene.hold_everywhere(timeline, 5);
  }
  SECTION("the trainer closes") {
    scene.rank(0).is_closing = true;
  }
  coordinator.decide(scene.view, Time{});  // May commit.
  coordinator.decide(scene.view, Time{});
  REQUIRE(times() == 0);
}

TEST_CASE("coordinator: a base with fewer copies than asked for is reported", "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 4, 0);
  scene.hold(1, 1, 4, 1);
  agree::Coordinator coordinator = restored(scene);
  REQUIRE(coordinator.decree().committed == format::StepId{1, Step{4}});
  REQUIRE(coordinator.decree().degraded ==
          "step 4, from which training went on, has 1 of 2 copies");
  SECTION("until they are there") {
    scene.hold(1, 1, 4, 0);
    scene.hold(0, 1, 4, 1);
  }
  SECTION("until a newer one is committed") {
    const std::uint64_t timeline = coordinator.decree().start->timeline;
    scene.train(timeline, 5);
    scene.hold_everywhere(timeline, 5);
  }
  coordinator.decide(scene.view, Time{});
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.decree().degraded.empty());
}

TEST_CASE("coordinator: a rank that went with its node is reported, as nothing is committed",
          "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 5);
  scene.hold_everywhere(1, 5);
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.decree().degraded.empty());
  scene.lose(1);
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.decree().degraded ==
          "lost: B; steps get 1 of 2 copies; no step is committed while rank 1 is away");
}

TEST_CASE("coordinator: a rank that closes alone is no progress", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  agree::Coordinator coordinator = restored(scene);
  const auto times = [&] {
    coordinator.decide(scene.view, Time{});
    return coordinator.decree().restore_counts.front().times;
  };
  scene.rank(0).is_closing = true;
  REQUIRE(times() == 1);
  scene.rank(1).is_closing = true;
  REQUIRE(times() == 0);
}

TEST_CASE("coordinator: a Start whose timeline is taken goes in another one", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.view.shape.has_storage = true;
  scene.hold_everywhere(1, 4);
  agree::Coordinator coordinator = about_to_go(scene, Step{4});
  const std::uint64_t start_id = coordinator.unrecorded()->start_id;
  REQUIRE(coordinator.decree().start->timeline == 2);
  coordinator.claimed(start_id + 1, 7);  // Of a Start that is not decided any more.
  REQUIRE(coordinator.decree().start->timeline == 2);
  coordinator.claimed(start_id, 5);
  REQUIRE(coordinator.decree().start->timeline == 5);
  REQUIRE(coordinator.decree().history.back() ==
          format::TimelineStart{5, format::StepId{1, Step{4}}});
  coordinator.sent(start_id);
  REQUIRE(coordinator.unrecorded() == nullptr);
  coordinator.claimed(start_id, 9);  // Too late.
  REQUIRE(coordinator.decree().start->timeline == 5);
}

TEST_CASE("coordinator: nodes that do not hear one another begin timelines of two numbers",
          "[unit][agree]") {
  std::set<std::uint64_t> timelines;
  for (const std::uint64_t boot : {1, 2, 3}) {
    Scene scene(1);
    scene.view.shape.replicas = 1;
    scene.hold_everywhere(1, 4);
    agree::Coordinator coordinator = about_to_go(scene, Step{4}, boot);
    timelines.insert(coordinator.decree().start->timeline);
  }
  REQUIRE(timelines.size() == 3);
  REQUIRE(*timelines.begin() > 1);
}

TEST_CASE("coordinator: a rank that trains proves that its Start went", "[unit][agree]") {
  Scene scene(2);
  scene.view.shape.has_storage = true;
  scene.hold_everywhere(1, 4);
  scene.view.reports[1].committed = format::StepId{1, Step{4}};
  scene.all_ask();
  agree::Coordinator died({"A", 1});
  died.decide(scene.view, Time{});
  const format::Start pending = *died.decree().start;
  REQUIRE(pending.outcome.is_pending());
  answer(scene, pending, StartPhase::ready);
  for (format::NodeReport& report : scene.view.reports) report.start = pending;

  // Its go reached the rank on its own node only, in another timeline than the one voted for.
  scene.rank(0).phase = StartPhase::running;
  scene.rank(0).attempt = 0;  // A daemon that was started again does not know it.
  scene.rank(0).timeline = pending.timeline + 5;
  const auto taken_over = [&] {
    agree::Coordinator successor({"B", 2});
    successor.decide(scene.view, Time{});
    return successor;
  };
  SECTION("the other ranks follow") {
    const agree::Coordinator successor = taken_over();
    const format::Decree& decree = successor.decree();
    REQUIRE(decree.start->outcome.is_go());
    CHECK(decree.start->start_id == pending.start_id);
    CHECK(decree.start->attempt == pending.attempt);
    CHECK(decree.start->timeline == pending.timeline + 5);
    CHECK(decree.history.back() ==
          format::TimelineStart{pending.timeline + 5, format::StepId{1, Step{4}}});
    // Its timeline was claimed before it went: nobody may claim another one, or refuse it.
    CHECK(successor.unrecorded() == nullptr);
  }
  SECTION("a rank that trains after another Start proves nothing") {
    scene.rank(0).start_id = pending.start_id + 1;
    CHECK(taken_over().decree().start->outcome.is_pending());
  }
}

TEST_CASE("coordinator: a Start that is refused leaves all as it was before", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.view.shape.has_storage = true;
  scene.hold_everywhere(1, 4);
  scene.hold_everywhere(1, 5);
  scene.view.published->push_back({{1, Step{5}}, 1, {ckpt::test::digest(1)}});
  agree::Coordinator coordinator = about_to_go(scene, Step{4});
  REQUIRE(coordinator.unrecorded()->abandons == format::StepId{1, Step{5}});
  const std::uint64_t sequence = coordinator.decree().sequence;
  coordinator.refuse(coordinator.unrecorded()->start_id, Error(Errc::io, "read-only"));
  const format::Decree& decree = coordinator.decree();
  REQUIRE_FALSE(decree.start->outcome.is_go());
  REQUIRE(decree.start->outcome.error() == Errc::io);
  REQUIRE(decree.start->reason.find("read-only") != std::string::npos);
  REQUIRE(decree.sequence > sequence);
  REQUIRE(decree.history.empty());
  REQUIRE(decree.restore_counts.empty());
  REQUIRE(decree.durable == format::StepId{1, Step{5}});
  REQUIRE(coordinator.unrecorded() == nullptr);
}

TEST_CASE("coordinator: a Start abandons good steps, and only its own", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.view.shape.has_storage = true;
  scene.hold_everywhere(1, 4);
  scene.view.published->push_back({{1, Step{5}}, 1, {ckpt::test::digest(1)}});
  SECTION("a suspect one is passed by") {
    scene.view.reports[0].restore_counts = {{{1, Step{5}}, 3}};
  }
  SECTION("an earlier restore has abandoned it") {
    scene.view.reports[0].history = {{2, format::StepId{1, Step{4}}}};
  }
  agree::Coordinator coordinator = about_to_go(scene, Step{4});
  REQUIRE_FALSE(coordinator.unrecorded()->abandons);
}

TEST_CASE("coordinator: one started in mid-run learns from the history that training got on",
          "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.view.reports[0].history = {{1, {}}, {2, format::StepId{1, Step{4}}}};
  scene.view.reports[0].restore_counts = {{{1, Step{4}}, 3}, {{1, Step{3}}, 2}};
  scene.train(2, 5);
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  REQUIRE_FALSE(coordinator.decree().start);
  const auto counts = [&] { return coordinator.decree().restore_counts; };
  REQUIRE(counts() == std::vector<format::RestoreCount>{{{1, Step{3}}, 2}, {{1, Step{4}}, 3}});
  SECTION("the trainer says so") {
    scene.rank(0).restored_ok = true;
  }
  SECTION("a step of the timeline is committed") {
    scene.hold_everywhere(2, 5);
  }
  SECTION("the trainer closes") {
    scene.rank(0).is_closing = true;
  }
  coordinator.decide(scene.view, Time{});  // May commit.
  coordinator.decide(scene.view, Time{});
  REQUIRE(counts() == std::vector<format::RestoreCount>{{{1, Step{3}}, 2}, {{1, Step{4}}, 0}});
}

TEST_CASE("coordinator: another daemon's steps in the directory do not pass for ours",
          "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.view.shape.has_storage = true;
  scene.train(3, 5);
  scene.hold_everywhere(3, 5);
  scene.view.published->push_back({{4, Step{9}}, 1, {ckpt::test::digest(1)}});
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  REQUIRE(coordinator.decree().committed == format::StepId{3, Step{5}});
  REQUIRE_FALSE(coordinator.decree().durable);
  const std::string& degraded = coordinator.decree().degraded;
  REQUIRE(degraded.find("another daemon stores steps of its own of this job") == 0);
  REQUIRE(degraded.find("`ckpt cp memory:") != std::string::npos);
  scene.rank(0).is_closing = true;
  coordinator.decide(scene.view, Time{});
  REQUIRE_FALSE(coordinator.decree().ended);  // Step 5 is still to be stored.
  REQUIRE(coordinator.decree().flush->at == format::StepId{3, Step{5}});
}

TEST_CASE("coordinator: by time, each interval announces a step that all ranks have before them",
          "[unit][agree]") {
  Scene scene(2);
  scene.view.shape.save_mem_interval = {0, std::chrono::seconds(10)};
  agree::Coordinator coordinator({"A", 1});
  Time now{std::chrono::seconds(100)};
  const auto pass = [&](std::chrono::seconds time) { coordinator.decide(scene.view, now += time); };
  const auto announced = [&] { return number(coordinator.decree().next_capture); };
  for (std::size_t rank = 0; rank < 2; ++rank) scene.rank(rank).phase = StartPhase::fresh;
  pass(std::chrono::seconds(0));
  REQUIRE(coordinator.decree().start->outcome.is_go());
  answer(scene, *coordinator.decree().start, StartPhase::running);
  const std::uint64_t timeline = coordinator.decree().start->timeline;
  scene.train(timeline, 0);
  pass(std::chrono::seconds(0));
  REQUIRE(announced() == 0);  // All capture the first step they come to.

  // Ten steps a second.
  scene.train(timeline, 99);
  pass(std::chrono::seconds(9));
  REQUIRE(announced() == 0);
  scene.train(timeline, 110);
  pass(std::chrono::seconds(2));
  const std::uint64_t first = announced();
  REQUIRE(first > 112);  // A third of a second ahead.
  REQUIRE(first < 120);
  scene.train(timeline, 150);
  pass(std::chrono::seconds(4));
  REQUIRE(announced() == first);

  // One rank learned of it too late: the step is given up, and another announced, further ahead.
  scene.hold(0, timeline, first, 0);
  pass(std::chrono::seconds(0));
  const std::uint64_t second = announced();
  REQUIRE(second > 152);
  REQUIRE(second < 160);

  // A minute for a step: the next one but one, not many minutes ahead.
  scene.view.reports[0].holdings.clear();
  scene.train(timeline, 161);
  pass(std::chrono::seconds(600));
  scene.train(timeline, 171);
  pass(std::chrono::seconds(600));
  REQUIRE(announced() > 172);
  REQUIRE(announced() < 176);
}

TEST_CASE("coordinator: ranks that run far apart all come to the step that was ordered",
          "[unit][agree]") {
  Scene scene(2);
  agree::Coordinator coordinator({"A", 1});
  const auto decide = [&] {
    coordinator.decide(scene.view, Time{});
    return number(coordinator.decree().next_capture);
  };
  const auto see = [&](std::size_t rank, std::uint64_t step) {
    scene.rank(rank).last_seen = Step{step};
  };
  scene.train(1, 10);
  see(0, 200);
  for (const std::uint64_t step : {50, 90, 130}) scene.hold(0, 1, step, 0);
  see(1, 50);  // Past the first of them.
  const std::uint64_t ordered = decide();
  REQUIRE(ordered > 200);

  see(0, 300);
  for (const std::uint64_t seen : {90u, 130u, 190u}) {
    see(1, seen);  // Past the others, one by one.
    CHECK(decide() == ordered);
  }
  scene.hold(0, 1, ordered, 0);
  see(1, ordered);  // It had no Slot for it.
  CHECK(decide() > 300);
}

TEST_CASE("coordinator: a flush is ordered, followed and given up", "[unit][agree]") {
  Scene scene(2);
  scene.view.shape.has_storage = true;
  scene.view.shape.save_storage_interval.steps = 2;
  scene.train(1, 4);
  scene.hold_everywhere(1, 4);
  agree::Coordinator coordinator({"A", 1});
  REQUIRE(coordinator.decide(scene.view, Time{}));
  REQUIRE(coordinator.decree().flush.has_value());
  const format::FlushOrder order = *coordinator.decree().flush;
  REQUIRE(order.writers == std::vector<format::FlushWriter>{{"A", 0}, {"B", 0}});

  scene.view.reports[0].flush = {false, order.flush_id, 1, {{0, 0, ckpt::test::digest(7)}}, {}};
  coordinator.decide(scene.view, Time{});
  REQUIRE_FALSE(coordinator.publishing().has_value());
  scene.view.reports[1].flush = {false, order.flush_id, 0, {}, {{1, 0, "disk full"}}};
  coordinator.decide(scene.view, Time{});  // Node A holds it, too.
  REQUIRE(coordinator.decree().flush.has_value());
  scene.view.reports[0].flush.failed.push_back({1, 1, "disk full"});
  coordinator.decide(scene.view, Time{});
  REQUIRE_FALSE(coordinator.decree().flush.has_value());
  REQUIRE(coordinator.decree().degraded == "step 4 is not stored: node A: disk full");
  coordinator.decide(scene.view, Time{} + std::chrono::seconds(1));
  REQUIRE_FALSE(coordinator.decree().flush.has_value());
  coordinator.decide(scene.view, Time{} + std::chrono::seconds(3));
  REQUIRE(coordinator.decree().flush.has_value());
  const format::FlushOrder again = *coordinator.decree().flush;
  REQUIRE(again.flush_id != order.flush_id);
  REQUIRE_FALSE(coordinator.decree().degraded.empty());  // Not before it is stored.
  coordinator.published(again.flush_id, {}, Time{} + std::chrono::seconds(3));
  coordinator.decide(scene.view, Time{} + std::chrono::seconds(3));
  REQUIRE(coordinator.decree().degraded.empty());
}
