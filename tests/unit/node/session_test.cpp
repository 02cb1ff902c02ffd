// Goal:   a change that breaks what always holds of a session is found where it is made, not at the
//         next look at the whole job.
// Method: a session that breaks a rule already, or would by the change, and each of its setters.
#include "node/session.hpp"

#include <catch2/catch.hpp>

#include "support/assertion_trap.hpp"

namespace ckpt::node {
namespace {

using format::StartPhase;

// One that closes without a deadline, which nothing may do.
Session broken_session() {
  Session session;
  session.id = SessionId{1};
  session.trained_before = true;
  session.phase = StartPhase::asks;
  session.is_closing = true;
  return session;
}

format::Start start_that(format::StartOutcome outcome) {
  format::Start start;
  start.start_id = 7;
  start.timeline = 2;
  start.outcome = outcome;
  return start;
}

}  // namespace

TEST_CASE("session: each change looks at what must hold", "[unit][node]") {
  Session session = broken_session();
  const format::Start pending = start_that({});
  const format::Start failed = start_that(format::StartOutcome::failed(Errc::unavailable));
  REQUIRE_TRIPS(session.answer(pending, StartPhase::ready, Status()));
  REQUIRE_TRIPS(session.begin(pending, std::nullopt));
  REQUIRE_TRIPS(session.miss(failed));
  REQUIRE_TRIPS(session.continue_as({}));
  REQUIRE_TRIPS(session.ask_to(StartPhase::asks, 5));
  REQUIRE_TRIPS(session.withdraw(5));
  session.close_deadline = Time{};
  REQUIRE_NOTHROW(session.answer(pending, StartPhase::ready, Status()));
  REQUIRE_NOTHROW(session.withdraw(5));
  CHECK(session.phase == StartPhase::running);
}

}  // namespace ckpt::node
