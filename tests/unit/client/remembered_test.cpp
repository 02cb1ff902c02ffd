// Goal:   the next daemon hears what the trainer still waits for, and nothing that another timeline
//         made meaningless: a flush of a step that is no more would be waited for without end.
// Method: say, begin, close; then look at the messages.
#include "client/remembered.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {
namespace {

namespace control = wire::control;

template <class Kind>
bool tells(const Remembered& remembered) {
  for (const control::Message& message : remembered.all()) {
    if (std::holds_alternative<Kind>(message)) return true;
  }
  return false;
}

control::Begun begun(std::uint64_t ask, std::uint64_t timeline, Status result = {}) {
  control::Begun begun;
  begun.ask = ask;
  begun.timeline = timeline;
  begun.result = std::move(result);
  return begun;
}

// On timeline 3, it has a layout, waits for a flush, and has confirmed a restore.
Remembered of_timeline_3() {
  Remembered remembered;
  remembered.said(control::SetLayout{});
  remembered.said(control::Flush{Step{9}});
  remembered.said(control::RestoredOk{Step{5}});
  return remembered;
}

}  // namespace

TEST_CASE("remembered: all that holds is sent, the layout first and the close last",
          "[unit][client]") {
  Remembered remembered = of_timeline_3();
  remembered.said(control::Close{});
  remembered.said(control::AskRestore{4, std::nullopt});
  remembered.said(control::Skipped{Step{7}});  // Of no use to the next daemon.
  const auto all = remembered.all();
  REQUIRE(all.size() == 5);
  CHECK(std::holds_alternative<control::SetLayout>(all[0]));
  CHECK(std::holds_alternative<control::AskRestore>(all[1]));
  CHECK(std::get<control::Flush>(all[2]).step == Step{9});
  CHECK(std::get<control::RestoredOk>(all[3]).step == Step{5});
  CHECK(std::holds_alternative<control::Close>(all[4]));
}

TEST_CASE("remembered: a wish is sent until it is answered, and not by an older answer",
          "[unit][client]") {
  Remembered remembered;
  remembered.said(control::AskRestore{4, Step{9}});
  remembered.begun(begun(3, 2), 1);
  CHECK(tells<control::AskRestore>(remembered));
  remembered.begun(begun(4, 2), 2);
  CHECK_FALSE(tells<control::AskRestore>(remembered));
  remembered.said(control::StartFresh{5});
  CHECK(tells<control::StartFresh>(remembered));
  remembered.begun(begun(5, 2), 2);
  CHECK_FALSE(tells<control::StartFresh>(remembered));
}

TEST_CASE("remembered: a new timeline ends what was said of the steps of the one before",
          "[unit][client]") {
  Remembered remembered = of_timeline_3();
  SECTION("it does") {
    remembered.begun(begun(1, 4), 3);
    CHECK_FALSE(tells<control::Flush>(remembered));
    CHECK_FALSE(tells<control::RestoredOk>(remembered));
  }
  SECTION("a session that goes on as it was keeps both") {
    remembered.begun(begun(1, 3), 3);
    CHECK(tells<control::Flush>(remembered));
    CHECK(tells<control::RestoredOk>(remembered));
  }
  SECTION("a restore that failed changes nothing") {
    remembered.begun(begun(1, 0, fail(Errc::not_found, "there is none")), 3);
    CHECK(tells<control::Flush>(remembered));
    CHECK(tells<control::RestoredOk>(remembered));
  }
  CHECK(tells<control::SetLayout>(remembered));
}

TEST_CASE("remembered: a close that was answered is not asked for again", "[unit][client]") {
  Remembered remembered;
  remembered.said(control::Close{});
  CHECK(tells<control::Close>(remembered));
  remembered.closed();
  CHECK_FALSE(tells<control::Close>(remembered));
}

}  // namespace ckpt::client
