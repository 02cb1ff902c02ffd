// Goal:   a task runs before anybody asks for its result, and ends whether anybody does or not.
// Method: tasks that sleep on a fake clock.
#include "base/started.hpp"

#include <catch2/catch.hpp>

#include "support/fake_clock.hpp"
#include "support/pending.hpp"

namespace ckpt::test {
namespace {

using std::chrono::milliseconds;

struct Scene {
  asio::io_context context;
  FakeClock clock{context};
  int steps = 0;
};

Task<int> count(Scene& scene) {
  ++scene.steps;
  CKPT_CO_CHECK(co_await sleep_until(scene.clock, scene.clock.after(milliseconds(10))));
  co_return ++scene.steps;
}

Started<int> start_count(Scene& scene, std::shared_ptr<void> keep_alive = nullptr) {
  return Started<int>(scene.context.get_executor(), scene.clock, count(scene),
                      std::move(keep_alive));
}

}  // namespace

TEST_CASE("started: it runs beside its starter, which gets its result", "[unit][base]") {
  Scene scene;
  Started<int> counting = start_count(scene);
  scene.clock.advance(milliseconds(5));
  REQUIRE(scene.steps == 1);
  const auto counted = finish(scene.clock, start(scene.context, counting.result()));
  REQUIRE(counted);
  REQUIRE(*counted == 2);
}

TEST_CASE("started: a result that came before it is asked for is kept", "[unit][base]") {
  Scene scene;
  Started<int> counting = start_count(scene);
  scene.clock.advance(milliseconds(20));
  REQUIRE(scene.steps == 2);
  REQUIRE(*finish(scene.clock, start(scene.context, counting.result())) == 2);
}

TEST_CASE("started: a wait ends at its deadline, and the task goes on", "[unit][base]") {
  Scene scene;
  Started<int> counting = start_count(scene);
  const Time deadline = scene.clock.after(milliseconds(5));
  const auto waited = finish(scene.clock, start(scene.context, counting.ended_by(deadline)));
  REQUIRE(waited);
  REQUIRE_FALSE(*waited);
  REQUIRE(*finish(scene.clock, start(scene.context, counting.result())) == 2);
}

TEST_CASE("started: dropped work runs to its end, and its objects live so long", "[unit][base]") {
  Scene scene;
  auto needed = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = needed;
  start_count(scene, std::move(needed));
  scene.clock.advance(milliseconds(5));
  REQUIRE_FALSE(watched.expired());
  scene.clock.advance(milliseconds(20));
  REQUIRE(scene.steps == 2);
  REQUIRE(watched.expired());
}

}  // namespace ckpt::test
