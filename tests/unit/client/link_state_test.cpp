// Goal:   what the engine says is what the trainer sees, waiting ends with an answer or at the
//         deadline, and a lost engine's Slots and levels are not believed.
// Method: play the events of one session on this thread, and ask between them with a deadline that
//         has passed, so that nothing waits.
#include "client/link_state.hpp"

#include <array>
#include <catch2/catch.hpp>

#include "base/log.hpp"
#include "base/units.hpp"

namespace ckpt::client {
namespace {

using Catch::Contains;

const Deadline passed = Deadline::min();

struct Session {
  Session() { state.attached({1, 2}); }

  MappedSlot slot(std::uint64_t generation, std::size_t bytes) {
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    seen.push_back(memory);
    return {generation, std::span(*memory), memory};
  }
  void make_slots(std::uint64_t slot_bytes = page_bytes) {
    state.ask_layout(slot_bytes);
    state.slots_ready({slot(10, slot_bytes), slot(11, slot_bytes)});
  }
  void begin(std::uint64_t timeline = 1, std::optional<format::StepId> restored = {}) {
    control::Begun begun;
    begun.ask = ask;
    begun.timeline = timeline;
    begun.restored = restored;
    state.begun(begun);
  }

  LinkState state{"rank 0 of job test"};
  std::uint64_t ask = 0;                                    // The last request.
  std::vector<std::weak_ptr<std::vector<std::byte>>> seen;  // To tell whether it is still mapped.
};

}  // namespace

TEST_CASE("link state: a Slot is ours from the grant until it is given back", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  CHECK_FALSE(session.state.take_slot(Step{1}));
  session.state.slot_granted(1);
  session.state.slot_granted(1);  // Said twice, granted once.
  const auto granted = session.state.take_slot(Step{1});
  REQUIRE(granted);
  CHECK(granted->slot == 1);
  CHECK(granted->generation == 11);
  CHECK_FALSE(session.state.take_slot(Step{1}));
  CHECK(session.state.give_back(*granted).generation == 11);
  CHECK(session.state.give_back(*granted).owner == nullptr);
}

TEST_CASE("link state: a grant of a Slot that nobody mapped is no grant", "[unit][client]") {
  Session session;
  session.make_slots();
  session.state.slot_granted(2);
  CHECK_FALSE(session.state.take_slot(Step{1}));
  CHECK_FALSE(session.state.counters().last_error.empty());
}

TEST_CASE("link state: a Slot too small for the newest layout is not taken", "[unit][client]") {
  Session session;
  session.make_slots();
  session.state.slot_granted(0);
  CHECK(session.state.is_ready());
  session.state.ask_layout(page_bytes + 1);
  CHECK_FALSE(session.state.is_ready());
  CHECK_FALSE(session.state.take_slot(Step{1}));
  CHECK(session.state.wait_slots(passed).error().code() == Errc::unavailable);
  session.state.slots_ready({session.slot(12, 2 * page_bytes)});
  CHECK(session.state.wait_slots(passed));
  session.state.slot_granted(0);
  CHECK(session.state.take_slot(Step{1})->generation == 12);
}

TEST_CASE("link state: a Slot that is for restores ends the wait of a restore, and no other",
          "[unit][client]") {
  Session session;
  session.state.ask_layout(page_bytes);
  MappedSlot first = session.slot(10, page_bytes);
  SECTION("if it is large enough") {
    first.is_for_restore = true;
    session.state.slots_ready({first});
    CHECK(session.state.wait_slots_for_restore(passed, {}));
    CHECK_FALSE(session.state.is_ready());
    CHECK(session.state.wait_slots(passed).error().code() == Errc::unavailable);
    first.is_for_restore = false;  // All are made.
    session.state.slots_ready({first, session.slot(11, page_bytes)});
    CHECK(session.state.is_ready());
    CHECK(session.state.wait_slots(passed));
  }
  SECTION("if it is too small") {
    session.state.ask_layout(page_bytes + 1);
    first.is_for_restore = true;
    session.state.slots_ready({first});
    const Status late = session.state.wait_slots_for_restore(passed, {});
    REQUIRE_FALSE(late);
    CHECK(late.error().code() == Errc::unavailable);
  }
}

TEST_CASE("link state: a wait for Slots says how large they are, rank 0 in the log",
          "[unit][client]") {
  static std::vector<std::string> logged;
  logged.clear();
  const bool is_logged = GENERATE(true, false);
  std::optional<std::chrono::milliseconds> log_after;
  if (is_logged) log_after = std::chrono::milliseconds(0);
  LinkState state("rank 0 of job test", log_after);
  state.attached({1, 2});
  state.ask_layout(3 * MiB);
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  // A wait that is over before it begins says nothing.
  const std::chrono::milliseconds patience(is_logged ? 200 : 1);
  const Status late = state.wait_slots(std::chrono::steady_clock::now() + patience);
  Log::set_sink(nullptr);
  REQUIRE_FALSE(late);
  CHECK_THAT(late.error().text(), Contains("make Slots of 3.0 MiB: not done yet"));
  REQUIRE(logged.size() == (is_logged ? 1 : 0));
  if (is_logged)
    CHECK_THAT(logged[0], Contains("rank 0 of job test: preparing memory") && Contains("3.0 MiB"));
}

TEST_CASE("link state: trouble that begins beside what is reported is logged, too",
          "[unit][client]") {
  static std::vector<std::string> logged;
  logged.clear();
  LinkState state("rank 0 of job test", std::nullopt);
  state.attached({1, 2});
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel, std::string_view line) {
    logged.emplace_back(line.substr(line.find("rank 0")));
  });
  const std::string news = "this process takes the place of pid 7";
  for (const std::string& degraded :
       {news, news, news + "; the disk is full: 1 try", news + "; the disk is full: 2 tries",
        std::string("the disk is full: 3 tries"), std::string()})
    state.noticed({"", degraded, ""});
  Log::set_sink(nullptr);
  CHECK(logged == std::vector<std::string>{"rank 0 of job test: degraded: " + news,
                                           "rank 0 of job test: degraded: the disk is full: 1 try",
                                           "rank 0 of job test: no longer degraded"});
}

TEST_CASE("link state: a close that begins in trouble warns at once", "[unit][client]") {
  static std::vector<std::string> logged;
  logged.clear();
  // Without trouble it would wonder only after an hour.
  LinkState state("rank 0 of job test", std::chrono::hours(1));
  state.attached({1, 2});
  state.ask_close();
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel level, std::string_view line) {
    logged.push_back((level == LogLevel::warning ? "warning " : "info ") + std::string(line));
  });
  const bool is_in_trouble = GENERATE(false, true);
  if (is_in_trouble) state.noticed({"", "step 5 is not stored: the disk is full", ""});
  logged.clear();  // The notice is logged, too.
  const Status late = state.wait_closed(std::chrono::steady_clock::now());
  const Status closed =
      state.wait_closed(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  Log::set_sink(nullptr);
  REQUIRE_FALSE(late);
  REQUIRE_FALSE(closed);
  REQUIRE(logged.size() == (is_in_trouble ? 2 : 0));
  if (!is_in_trouble) return;
  CHECK_THAT(logged[0], Catch::StartsWith("warning ") &&
                            Contains("rank 0 of job test: close waits: ") &&
                            Contains("step 5 is not stored: the disk is full"));
  CHECK_THAT(logged[1], Contains(": close waits for 1 s at most: "));
}

TEST_CASE("link state: a close that lasts says once what it waits for", "[unit][client]") {
  static std::vector<std::string> logged;
  logged.clear();
  LinkState state("rank 0 of job test", std::chrono::milliseconds(0));
  state.attached({1, 2});
  state.level_reached(Step{5}, Level::committed);
  state.level_reached(Step{4}, Level::durable);
  state.noticed({"", "step 5 is not stored: the disk is full", ""});
  state.ask_close();
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  SECTION("while it lasts") {
    const Status late =
        state.wait_closed(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    Log::set_sink(nullptr);
    REQUIRE_FALSE(late);
    CHECK_THAT(late.error().text(), Contains("close: the deadline passed; step 5 is not stored") &&
                                        Contains(": step 5 is captured, step 5 is committed"));
    REQUIRE(logged.size() == 1);
    CHECK_THAT(logged[0], Contains("rank 0 of job test: close waits for 1 s at most: step 5 is "
                                   "captured, step 5 is committed, step 4 is durable; step 5 is "
                                   "not stored: the disk is full"));
  }
  SECTION("and one that is over says nothing") {
    state.closed(Status());
    CHECK(state.wait_closed(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
    Log::set_sink(nullptr);
    CHECK(logged.empty());
  }
}

TEST_CASE("link state: a layout that fits leaves the grants as they are", "[unit][client]") {
  Session session;
  const std::vector<MappedSlot> slots = {session.slot(10, page_bytes),
                                         session.slot(11, page_bytes)};
  session.state.ask_layout(page_bytes);
  session.state.slots_ready(slots);
  session.state.slot_granted(0);
  session.state.slot_granted(1);
  session.state.ask_layout(page_bytes);
  const auto begun = session.state.take_slot(Step{1});  // Before the answer to the layout.
  REQUIRE(begun);
  session.state.slots_ready(slots);
  const auto other = session.state.take_slot(Step{2});
  REQUIRE(other);
  CHECK(other->slot != begun->slot);
  CHECK_FALSE(session.state.take_slot(Step{3}));
}

TEST_CASE("link state: a Slot that was granted before a restore is not taken after it",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.state.slot_granted(0);
  session.begin(2);
  CHECK_FALSE(session.state.take_slot(Step{1}));
  session.state.slot_granted(0);
  CHECK(session.state.take_slot(Step{1}));
}

TEST_CASE("link state: Slots that cannot be made are an error until the next layout",
          "[unit][client]") {
  Session session;
  session.state.ask_layout(page_bytes);
  session.state.slots_failed(Error(Errc::exhausted, "over the budget"));
  CHECK(session.state.wait_slots(passed).error().code() == Errc::exhausted);
  session.state.ask_layout(page_bytes);
  CHECK(session.state.wait_slots(passed).error().code() == Errc::unavailable);
}

TEST_CASE("link state: a lost engine's Slots go, but for the one in use", "[unit][client]") {
  Session session;
  session.make_slots();
  session.state.slot_granted(0);
  session.state.slot_granted(1);
  const auto taken = session.state.take_slot(Step{1});
  REQUIRE(taken);
  session.state.lost("killed");
  CHECK_FALSE(session.state.is_ready());
  CHECK_FALSE(session.state.take_slot(Step{1}));
  CHECK(session.seen[1].expired());
  REQUIRE_FALSE(session.seen[0].expired());
  taken->bytes.back() = std::byte{1};  // A capture that still runs writes into it safely.
  session.state.give_back(*taken);
  CHECK(session.seen[0].expired());
  CHECK(session.state.counters().daemon_restarts == 1);
  CHECK(session.state.counters().last_error == "killed");
}

TEST_CASE("link state: levels count for older steps and lower levels", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  session.state.give_back(*session.state.take_slot(Step{8}));
  session.state.level_reached(Step{7}, Level::committed);
  CHECK(session.state.wait_level(Step{7}, Level::committed, passed));
  CHECK(session.state.wait_level(Step{6}, Level::captured, passed));
  CHECK(session.state.wait_level(Step{7}, Level::durable, passed).error().code() ==
        Errc::unavailable);
  CHECK(session.state.wait_level(Step{8}, Level::captured, passed).error().code() ==
        Errc::unavailable);
  session.state.step_dropped(Step{8});
  CHECK(session.state.wait_level(Step{8}, Level::captured, passed).error().code() ==
        Errc::not_found);
  session.state.level_reached(Step{9}, Level::captured);
  CHECK(session.state.wait_level(Step{8}, Level::captured, passed));
}

TEST_CASE("link state: a step that is not captured is not waited for", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  const auto verdict = [&](std::uint64_t step) {
    const Status waited = session.state.wait_level(Step{step}, Level::committed, passed);
    return waited ? Errc{} : waited.error().code();
  };
  session.state.skipped(Step{4});
  CHECK(verdict(4) == Errc::not_found);
  CHECK(verdict(5) == Errc::not_found);  // Nobody has asked for it.
  CHECK(session.state.wait_level(Step{5}, Level::committed, passed).error().text() ==
        "rank 0 of job test: step 5 has no save on this rank that could bring it");
  session.state.slot_granted(0);
  session.state.give_back(*session.state.take_slot(Step{6}));
  session.state.skipped(Step{7});
  CHECK(verdict(4) == Errc::unavailable);  // A newer one is under way, and counts.
  CHECK(verdict(7) == Errc::not_found);
  session.state.skipped(Step{6});  // Its capture failed.
  CHECK(verdict(6) == Errc::not_found);
  CHECK(verdict(4) == Errc::not_found);  // So nothing newer comes, either.
  session.state.level_reached(Step{6}, Level::captured);
  CHECK(verdict(4) == Errc::unavailable);
}

TEST_CASE("link state: of two captures under way the one that is left is waited for",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  for (const std::uint64_t step : {6, 8}) {
    session.state.slot_granted(0);
    session.state.give_back(*session.state.take_slot(Step{step}));
  }
  const auto verdict = [&](std::uint64_t step) {
    return session.state.wait_level(Step{step}, Level::captured, passed).error().code();
  };
  session.state.step_dropped(Step{8});
  CHECK(verdict(8) == Errc::not_found);
  CHECK(verdict(7) == Errc::not_found);
  CHECK(verdict(5) == Errc::unavailable);
  session.state.step_dropped(Step{6});
  CHECK(verdict(5) == Errc::not_found);
}

TEST_CASE("link state: one message is for steps skipped in a row, not across a capture",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  CHECK(session.state.add_skip(Step{1}));
  for (std::uint64_t step = 2; step < 1000; ++step) CHECK_FALSE(session.state.add_skip(Step{step}));
  REQUIRE(session.state.take_slot(Step{1000}));
  CHECK(session.state.add_skip(Step{1001}));
  CHECK_FALSE(session.state.add_skip(Step{1002}));
  CHECK(session.state.next_skip() == Step{999});
  CHECK_FALSE(session.state.add_skip(Step{1003}));
  CHECK(session.state.next_skip() == Step{1003});
  CHECK(session.state.add_skip(Step{1004}));
  CHECK(session.state.next_skip() == Step{1004});
}

TEST_CASE("link state: a deadline that passes says what was waited for", "[unit][client]") {
  Session session;
  const auto text = [&] { return session.state.wait_fresh(passed).error().text(); };
  session.state.noticed({"rank 1 is not attached", "step 5 is not stored: the disk is full"});
  CHECK(text().find("it waits: rank 1 is not attached") != std::string::npos);
  CHECK(text().find("; step 5 is not stored: the disk is full") != std::string::npos);
  CHECK(session.state.counters().degraded == "step 5 is not stored: the disk is full");
  CHECK(session.state.counters().last_error.empty());  // A trainer before this one has met it.
  session.ask = session.state.ask_begin();
  session.begin();
  session.state.noticed({"rank 1 is not attached", "step 6 is not stored: the disk is full"});
  CHECK(session.state.counters().last_error == "step 6 is not stored: the disk is full");
  session.state.ask_begin();
  SECTION("until it is over") {
    session.state.noticed({});
  }
  SECTION("until the engine that said it is gone") {
    session.state.lost("killed");
  }
  CHECK(text().find("waits") == std::string::npos);
  CHECK(session.state.counters().degraded.empty());
  CHECK_FALSE(session.state.counters().last_error.empty());  // It was the newest failure.
}

TEST_CASE("link state: the watch of a restore gets the engine's progress", "[unit][client]") {
  Session session;
  session.ask = session.state.ask_begin();
  session.state.noticed({"rank 1 is not attached", ""});
  std::vector<RestoreProgress> told;
  const RestoreWatch watch = [&](const RestoreProgress& progress) {
    told.push_back(progress);
    if (told.size() == 1) {
      session.state.noticed({});
      session.state.restore_filling({3 * MiB, 5 * MiB, "node B"});
    } else if (told.size() == 2) {
      session.state.lost("killed");
    } else {
      session.state.attached({1, 2});
      session.begin();
    }
    return true;
  };
  const Deadline later = std::chrono::steady_clock::now() + std::chrono::hours(1);
  const auto offer = session.state.wait_offer(later, watch);
  REQUIRE(offer);
  CHECK_FALSE(*offer);
  REQUIRE(told.size() == 3);
  CHECK(told[0].phase == RestoreProgress::Phase::waiting);
  CHECK(told[0].waiting == "rank 1 is not attached");
  CHECK(told[1].phase == RestoreProgress::Phase::filling);
  CHECK(told[1].bytes == 3 * MiB);
  CHECK(told[1].bytes_total == 5 * MiB);
  CHECK(told[1].source_name == "node B");
  CHECK(told[1].waiting.empty());
  CHECK(told[2].phase == RestoreProgress::Phase::waiting);  // Filled Slots went.
  CHECK(told[2].waiting == "the daemon is away");
}

TEST_CASE("link state: a restore leaves it to the engine whether the Slots that are there do",
          "[unit][client]") {
  Session session;
  session.ask = session.state.ask_begin();
  session.state.ask_layout(16 * page_bytes);
  session.state.slots_failed(Error(Errc::exhausted, "over the budget"));
  REQUIRE(session.state.wait_slots_for_restore(passed, {}));
  const Status for_saves = session.state.wait_slots(passed);
  REQUIRE_FALSE(for_saves);
  CHECK(for_saves.error().code() == Errc::exhausted);
}

TEST_CASE("link state: the watch of a restore ends it while it waits", "[unit][client]") {
  Session session;
  session.ask = session.state.ask_begin();
  const RestoreWatch gives_up = [](const RestoreProgress&) { return false; };
  const Deadline never = std::chrono::steady_clock::now() + std::chrono::hours(1);

  Status ended;
  SECTION("for its Slots") {
    session.state.ask_layout(page_bytes);
    ended = session.state.wait_slots_for_restore(never, gives_up);
  }
  SECTION("for an offer") {
    session.make_slots();
    const auto offer = session.state.wait_offer(never, gives_up);
    if (!offer) ended = fail(Error(offer.error()));
  }
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code() == Errc::unavailable);
  CHECK_THAT(ended.error().text(), Contains("given it up"));
}

TEST_CASE("link state: a wait for Slots works once bytes are on their way", "[unit][client]") {
  Session session;
  session.ask = session.state.ask_begin();
  session.state.ask_layout(page_bytes);
  int worked = 0;
  const LinkState::Meanwhile work = [&] {
    if (++worked == 3) session.make_slots();
    return true;
  };
  REQUIRE_FALSE(session.state.wait_slots_for_restore(passed, {}, work));
  CHECK(worked == 0);
  session.state.restore_filling({0, 5 * MiB, "own memory"});
  const Deadline never = std::chrono::steady_clock::now() + std::chrono::hours(1);
  REQUIRE(session.state.wait_slots_for_restore(never, {}, work));
  CHECK(worked == 3);
}

TEST_CASE(
    "link state: work of a wait neither outlives its deadline nor comes again when it is done",
    "[unit][client]") {
  Session session;
  session.ask = session.state.ask_begin();
  session.make_slots();
  session.state.restore_filling({0, 5 * MiB, "node B"});
  int worked = 0;
  bool is_more = true;
  const LinkState::Meanwhile work = [&] {
    ++worked;
    return is_more;
  };
  SECTION("a deadline that has passed") {
    CHECK_FALSE(session.state.wait_offer(passed, {}, work));
    CHECK(worked == 1);
  }
  SECTION("nothing left to do") {
    is_more = false;
    const RestoreWatch begins = [&](const RestoreProgress&) {
      session.begin();
      return true;
    };
    const Deadline never = std::chrono::steady_clock::now() + std::chrono::hours(1);
    REQUIRE(session.state.wait_offer(never, begins, work));
    CHECK(worked == 1);
  }
}

TEST_CASE("link state: a daemon that does not answer is named until it does", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  session.state.give_back(*session.state.take_slot(Step{1}));
  const auto deadline_text = [&] {
    return session.state.wait_level(Step{1}, Level::committed, passed).error().text();
  };
  session.state.noticed({"", "step 5 is not stored: the disk is full"});
  session.state.silent(
      {std::chrono::steady_clock::now() - std::chrono::seconds(12), 42, "/run/ckptd.log"});
  const std::string begin = "the daemon, pid 42, has not answered for ";
  const std::string end = " s: it is stopped or hangs; its log is /run/ckptd.log";
  for (const std::string& text : {deadline_text(), session.state.counters().degraded}) {
    CHECK(text.find(begin + "1") != std::string::npos);
    CHECK(text.find(end + "; step 5 is not stored") != std::string::npos);
  }
  CHECK(session.state.counters().last_error.find(begin) == 0);
  SECTION("which it does") {
    session.state.heard_again();
    CHECK(session.state.counters().degraded == "step 5 is not stored: the disk is full");
  }
  SECTION("or until it is gone") {
    session.state.lost("killed");
    CHECK(session.state.counters().degraded.empty());
  }
  CHECK(deadline_text().find(begin) == std::string::npos);
}

TEST_CASE("link state: a status is the answer to this question, or why there is none",
          "[unit][client]") {
  Session session;
  session.begin();
  REQUIRE(session.state.ask_status());
  CHECK(session.state.wait_status(passed).error().code() == Errc::unavailable);
  session.state.notify(control::Answer{{}, "{1}"});
  CHECK(session.state.wait_status(passed).value() == "{1}");
  REQUIRE(session.state.ask_status());
  CHECK_FALSE(session.state.wait_status(passed));  // Earlier news is old.
  session.state.lost("killed");
  const auto unanswered = session.state.wait_status(std::chrono::steady_clock::time_point::max());
  CHECK(unanswered.error().text().find("the daemon ended meanwhile") != std::string::npos);
  const Status away = session.state.ask_status();
  CHECK(away.error().text().find("killed") != std::string::npos);
}

TEST_CASE("link state: a Slot lost by a fence is idle when nothing is written into it",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  const auto granted = session.state.take_slot(Step{1});
  session.state.fenced("another");
  CHECK_FALSE(session.state.forget_idle_slots());
  CHECK_FALSE(session.seen[0].expired());
  CHECK(session.seen[1].expired());
  session.state.give_back(*granted);
  CHECK(session.state.forget_idle_slots());
  CHECK(session.seen[0].expired());
}

TEST_CASE("link state: a lost engine's steps are not promised any more", "[unit][client]") {
  Session session;
  session.begin();
  session.state.level_reached(Step{5}, Level::durable);
  session.state.level_reached(Step{7}, Level::committed);
  session.state.lost("killed");
  CHECK_FALSE(session.state.wait_level(Step{7}, Level::committed, passed));
  CHECK(session.state.wait_level(Step{5}, Level::committed, passed));
  CHECK(session.state.counters().committed == Step{7});  // Counters only grow,
  CHECK(session.state.counters().saved == Step{5});      // but this one.
  session.state.attached({1, 2});
  session.state.level_reached(Step{7}, Level::committed);  // A peer had it.
  CHECK(session.state.counters().saved == Step{7});
}

TEST_CASE("link state: steps that died with an engine are lost until storage has a newer one",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  session.state.give_back(*session.state.take_slot(Step{7}));
  session.state.level_reached(Step{6}, Level::durable);
  CHECK_FALSE(session.state.newest_lost());
  session.state.lost("killed");
  CHECK(session.state.newest_lost() == Step{7});
  session.state.attached({1, 2});
  session.state.level_reached(Step{8}, Level::committed);
  CHECK(session.state.newest_lost() == Step{7});
  session.state.level_reached(Step{8}, Level::durable);
  CHECK_FALSE(session.state.newest_lost());
}

TEST_CASE("link state: a step that died with its engine is not waited for", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  session.state.slot_granted(1);
  session.state.give_back(*session.state.take_slot(Step{7}));
  session.state.level_reached(Step{6}, Level::durable);
  const auto verdict = [&](Step step, Level level) {
    const auto waited = session.state.wait_level(step, level, passed);
    return waited ? Errc{} : waited.error().code();
  };
  session.state.lost("killed");
  CHECK(verdict(Step{7}, Level::committed) == Errc::unavailable);
  session.state.attached({1, 2});
  CHECK(verdict(Step{7}, Level::committed) == Errc::unavailable);  // A peer may still have it.
  SECTION("the next engine does not know it") {
    session.make_slots();
    session.state.slot_granted(0);
    CHECK(verdict(Step{7}, Level::captured) == Errc::not_found);
    CHECK(verdict(Step{6}, Level::committed) == Errc{});
    CHECK(verdict(Step{8}, Level::captured) == Errc::not_found);  // Nobody has asked for it.
    session.state.level_reached(Step{8}, Level::captured);
    CHECK(verdict(Step{7}, Level::captured) == Errc{});
    CHECK(
        session.state.wait_level(Step{7}, Level::durable, passed).error().text() ==
        "rank 0 of job test: the daemon that held step 7 died, and the next one does not know the "
        "step to be durable");
  }
  SECTION("the next engine has it by a peer") {
    session.state.level_reached(Step{7}, Level::committed);
    session.make_slots();
    session.state.slot_granted(0);
    CHECK(verdict(Step{7}, Level::committed) == Errc{});
  }
  SECTION("the next engine has no memory for Slots") {
    session.state.slots_failed(Error(Errc::exhausted, "no memory"));
    CHECK(verdict(Step{7}, Level::committed) == Errc::not_found);
  }
  SECTION("another timeline comes to the same step again") {
    session.ask = session.state.ask_begin();
    session.begin(2);
    session.make_slots();
    session.state.slot_granted(0);
    session.state.give_back(*session.state.take_slot(Step{7}));
    CHECK(verdict(Step{7}, Level::captured) == Errc::unavailable);
  }
}

TEST_CASE("link state: another timeline's levels say nothing of this one", "[unit][client]") {
  Session session;
  session.begin(1);
  session.state.level_reached(Step{7}, Level::durable);
  session.ask = session.state.ask_begin();
  session.begin(2);
  CHECK(session.state.identity().timeline == 2);
  CHECK_FALSE(session.state.wait_level(Step{7}, Level::captured, passed));
}

TEST_CASE("link state: a restore begins with the levels of its step, not with abandoned ones",
          "[unit][client]") {
  Session session;
  session.begin(1);
  session.state.level_reached(Step{7}, Level::durable);
  session.ask = session.state.ask_begin();
  session.begin(2, format::StepId{1, Step{5}});
  CHECK_FALSE(session.state.counters().captured);
  CHECK_FALSE(session.state.counters().durable);
  session.state.level_reached(Step{5}, Level::committed);
  CHECK(session.state.counters().captured == Step{5});
  CHECK(session.state.counters().committed == Step{5});
  CHECK_FALSE(session.state.counters().durable);
  CHECK(session.state.wait_level(Step{5}, Level::committed, passed));
  CHECK_FALSE(session.state.wait_level(Step{6}, Level::captured, passed));
  CHECK_FALSE(session.state.wait_level(Step{5}, Level::durable, passed));
}

TEST_CASE("link state: a step that was restored is not skipped by those that follow it",
          "[unit][client]") {
  Session session;
  session.make_slots();
  session.ask = session.state.ask_begin();
  session.begin(2, format::StepId{1, Step{5}});
  const auto verdict = [&](std::uint64_t step) {
    const Status waited = session.state.wait_level(Step{step}, Level::durable, passed);
    return waited ? Errc{} : waited.error().code();
  };
  session.state.skipped(Step{5});  // Sent, by time, when step 6 is passed.
  session.state.skipped(Step{6});
  CHECK(verdict(5) == Errc::unavailable);  // On its way to storage.
  CHECK(verdict(6) == Errc::not_found);
  SECTION("it dies with its engine") {
    session.state.lost("killed");
    CHECK(session.state.newest_lost() == Step{5});
    session.state.attached({1, 2});
    session.make_slots();
    session.state.slot_granted(0);
    CHECK(verdict(5) == Errc::not_found);
  }
  SECTION("it is stored") {
    session.state.level_reached(Step{5}, Level::durable);
    CHECK(verdict(5) == Errc{});
    session.state.lost("killed");
    CHECK_FALSE(session.state.newest_lost());
  }
}

TEST_CASE("link state: offers come in order, then the answer", "[unit][client]") {
  Session session;
  session.make_slots();
  session.ask = session.state.ask_begin();
  CHECK(session.state.wait_offer(passed).error().code() == Errc::unavailable);
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    control::Offer offer;
    offer.ask = session.ask;
    offer.offer = slot + 1;
    offer.slot = slot;
    session.state.restore_offered(offer);
  }
  CHECK((*session.state.wait_offer(passed))->slot.generation == 10);
  CHECK((*session.state.wait_offer(passed))->offer.offer == 2);
  CHECK((*session.state.wait_offer(passed))->slot.owner == nullptr);  // There is no Slot 2.
  session.begin();
  CHECK_FALSE(session.state.wait_offer(passed)->has_value());
  CHECK(session.state.begun_answer()->timeline == 1);
}

TEST_CASE("link state: a late answer to what was given up answers nothing", "[unit][client]") {
  Session session;
  session.make_slots();
  const std::optional<std::uint64_t> given_up = session.state.ask_fresh();
  REQUIRE(given_up);
  session.ask = session.state.ask_begin();
  REQUIRE(session.ask != *given_up);
  control::Begun late;
  late.ask = *given_up;
  session.state.begun(late);  // It would say that there is nothing to restore.
  control::Offer offer;
  offer.ask = *given_up;
  session.state.restore_offered(offer);
  CHECK(session.state.wait_offer(passed).error().code() == Errc::unavailable);
  CHECK_FALSE(session.state.begun_answer());
  session.begin(3);
  REQUIRE(session.state.wait_offer(passed));
  CHECK(session.state.begun_answer()->timeline == 3);
}

TEST_CASE("link state: a fresh start needs the answer and a grant", "[unit][client]") {
  Session session;
  session.make_slots();
  session.ask = session.state.ask_begin();
  CHECK_FALSE(session.state.wait_fresh(passed));
  session.begin();
  CHECK_FALSE(session.state.wait_fresh(passed));
  session.state.slot_granted(0);
  CHECK(session.state.wait_fresh(passed));
  session.ask = session.state.ask_begin();
  control::Begun failed;
  failed.ask = session.ask;
  failed.result = fail(Errc::corruption, "no good copy");
  session.state.begun(failed);
  CHECK(session.state.wait_fresh(passed).error().code() == Errc::corruption);
  CHECK_FALSE(session.state.begun_answer()->result);
}

TEST_CASE("link state: a daemon that refuses every attach is not called away", "[unit][client]") {
  LinkState state("rank 0 of job test");
  state.lost("open s3://bucket/run: AccessDenied");
  const Status refused = state.wait_attached(passed, "s3://bucket/run");
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text(),
             Contains("; the last try failed: open s3://bucket/run: AccessDenied"));
  Session session;
  session.state.lost("its stream ended");
  CHECK_THAT(session.state.wait_attached(passed, "").error().text(),
             Contains("; the daemon is away: its stream ended"));
}

TEST_CASE("link state: once fenced, every wait ends with the reason", "[unit][client]") {
  Session session;
  session.make_slots();
  session.begin();
  session.state.slot_granted(0);
  session.state.fenced("pid 77 is newer");
  session.state.lost("its stream ended");  // Changes nothing any more.
  for (const Status& status :
       {session.state.wait_attached(Deadline::max(), ""),
        session.state.wait_closed(Deadline::max()),
        session.state.wait_level(Step{1}, Level::captured, Deadline::max())}) {
    REQUIRE_FALSE(status);
    CHECK(status.error().text().find("pid 77 is newer") != std::string::npos);
  }
  CHECK_FALSE(session.state.take_slot(Step{1}));
  // The daemon, which is well, answers only the other one.
  session.state.silent({std::chrono::steady_clock::now() - std::chrono::seconds(12), 42, "log"});
  CHECK(session.state.counters().degraded.empty());
  CHECK(session.state.counters().last_error.find("taken over") != std::string::npos);
}

TEST_CASE("link state: closing is answered once for each time it is asked", "[unit][client]") {
  Session session;
  session.state.ask_close();
  CHECK(session.state.wait_closed(passed).error().code() == Errc::unavailable);
  session.state.closed(fail(Errc::unavailable, "storage is slow"));
  CHECK(session.state.wait_closed(passed).error().text() == "storage is slow");
  session.state.ask_close();
  session.state.closed({});
  CHECK(session.state.wait_closed(passed));
}

TEST_CASE("link state: nothing below the next capture is captured", "[unit][client]") {
  Session session;
  CHECK(session.state.next_capture() == Step{0});
  session.state.next_capture(Step{10});
  CHECK(session.state.next_capture() == Step{10});
}

TEST_CASE("link state: an agreement in one timeline does not bind the next", "[unit][client]") {
  Session session;
  session.state.begun({0, 1, 1, std::nullopt, {}, {}});
  session.state.next_capture(Step{1000});
  session.state.begun({0, 1, 1, std::nullopt, {}, {}});  // Told again: the same timeline.
  CHECK(session.state.next_capture() == Step{1000});
  session.state.begun({0, 2, 2, format::StepId{1, Step{5}}, {}, {}});
  CHECK(session.state.next_capture() == Step{0});
}

}  // namespace ckpt::client
