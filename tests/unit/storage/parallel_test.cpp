// Goal:   of work that is done side by side no failure is lost, and there is never more of it at
//         once than was allowed.
// Method: workers that wait for a clock and count one another; one of them fails first or last.
#include "storage/parallel.hpp"

#include <catch2/catch.hpp>

#include "support/pending.hpp"

namespace ckpt::test {

namespace {

struct Workers {
  Task<void> run(std::size_t depth) {
    std::function<Task<void>(std::size_t)> one = [this](std::size_t index) { return work(index); };
    return storage::for_each_parallel(count, depth, std::move(one));
  }
  Task<void> work(std::size_t index) {
    most = std::max(most, ++at_once);
    const Time end = clock.after(std::chrono::seconds(index == slow ? 10 : 1));
    CKPT_CO_CHECK(co_await sleep_until(clock, end));
    --at_once;
    ++ended;
    if (index == bad) co_return fail(Errc::io, "a disk that fails");
    co_return Status();
  }

  asio::io_context context;
  FakeClock clock{context};
  std::size_t count = 20;
  std::size_t bad = SIZE_MAX;
  std::size_t slow = SIZE_MAX;
  std::size_t at_once = 0;
  std::size_t most = 0;
  std::size_t ended = 0;
};

}  // namespace

TEST_CASE("parallel: all of it is done, so much at once and no more", "[unit][storage]") {
  Workers workers;
  const std::size_t depth = GENERATE(1u, 4u, 20u, 50u);
  REQUIRE(finish(workers.clock, start(workers.context, workers.run(depth))));
  CHECK(workers.ended == workers.count);
  CHECK(workers.most == std::min(depth, workers.count));
}

TEST_CASE("parallel: a failure is not lost when others end well after it", "[unit][storage]") {
  Workers workers;
  workers.bad = 1;
  workers.slow = 2;
  const Status done = finish(workers.clock, start(workers.context, workers.run(4)));
  REQUIRE_FALSE(done);
  CHECK(done.error().code() == Errc::io);
  CHECK(workers.at_once == 0);           // All that had begun has ended,
  CHECK(workers.ended < workers.count);  // and what had not was left.
}

}  // namespace ckpt::test
