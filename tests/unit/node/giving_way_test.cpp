// Goal:   limits hold while somebody trains here, and never longer; what was done beside a step is
//         known to the nanosecond.
// Method: step times and work on a clock that the test moves; then a whole engine that flushes.
#include "node/giving_way.hpp"

#include <catch2/catch.hpp>

#include "one_rank.hpp"
#include "support/fake_clock.hpp"
#include "support/pending.hpp"

namespace ckpt::test {
namespace {

using node::BackgroundWork;
using node::GivingWay;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct NoEvents : node::SessionEvents {
  void slots_ready(std::vector<node::ReadySlot>) override {}
  void tell(control::Event) override {}
};

class GivingWayScene {
 public:
  GivingWayScene() {
    ranks[0].session = std::make_unique<node::Session>();
    ranks[0].session->events = &events;
    ranks[0].wanted_slot_bytes = MiB;
    update();
  }
  void update(bool is_ending = false) { giving_way.update(ranks, is_ending, 1); }
  void train(int steps, milliseconds each = milliseconds(100)) {
    for (int n = 0; n < steps; ++n) {
      clock.advance(each);
      giving_way.step_time(0, {1, each, false});
    }
  }
  // With a flush that moves 1000 MiB/s beside the steps, which last a tenth longer.
  void train_disturbed(int steps) {
    auto pass = giving_way.begin(BackgroundWork::flush);
    for (int n = 0; n < steps; ++n) {
      start(context, giving_way.throttle(BackgroundWork::flush)->take(110 * MiB));
      train(1, milliseconds(110));
    }
    pass.end(clock.now());
  }

  asio::io_context context;
  FakeClock clock{context};
  NoEvents events;
  node::Ranks ranks;
  GivingWay giving_way{clock, "job"};
};

}  // namespace

TEST_CASE_METHOD(GivingWayScene, "giving way: the options' limits hold while somebody trains",
                 "[unit][node]") {
  giving_way.set_rates(500 * MiB, 0);
  update();
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 500 * MiB);
  REQUIRE(giving_way.rate(BackgroundWork::copies) == 0);
  SECTION("not when the daemon ends") {
    update(true);
  }
  SECTION("not when a rank closes") {
    ranks[0].session->close_deadline = clock.after(seconds(60));
    update();
  }
  SECTION("not when the trainer is gone") {
    ranks[0].session->events = nullptr;
    update();
  }
  SECTION("not without any session") {
    ranks[0].session.reset();
    update();
  }
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
}

TEST_CASE_METHOD(GivingWayScene, "giving way: steps that last longer beside a flush slow it down",
                 "[unit][node]") {
  train(20);
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
  train_disturbed(8);
  const std::uint64_t rate = giving_way.rate(BackgroundWork::flush);
  REQUIRE(rate > 500 * MiB);
  REQUIRE(rate < 800 * MiB);
  REQUIRE(giving_way.step_ratio(BackgroundWork::flush) == Approx(1.1));
  REQUIRE(giving_way.rate(BackgroundWork::copies) == 0);
  SECTION("not below what stores a step in time") {
    ranks[0].wanted_slot_bytes = 60'000 * MiB;
    update();
    train(1);
    REQUIRE(giving_way.rate(BackgroundWork::flush) == 1'000 * MiB);
  }
  SECTION("an option that is lower holds") {
    giving_way.set_rates(100 * MiB, 0);
    update();
    REQUIRE(giving_way.rate(BackgroundWork::flush) == 100 * MiB);
  }
  SECTION("an option that is higher does not") {
    giving_way.set_rates(5'000 * MiB, 0);
    update();
    REQUIRE(giving_way.rate(BackgroundWork::flush) == rate);
  }
  SECTION("a trainer that sends no step times is not given way to, until it does again") {
    clock.advance(GivingWay::silence_min + milliseconds(1));
    update();
    REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
    train(1);
    REQUIRE(giving_way.rate(BackgroundWork::flush) == rate);
  }
  SECTION("nor one that closes") {
    ranks[0].session->close_deadline = clock.after(seconds(60));
    update();
    REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
  }
}

TEST_CASE_METHOD(GivingWayScene, "giving way: long steps are given way to between their times",
                 "[unit][node]") {
  train(20);
  train_disturbed(8);
  train(1, milliseconds(10'000));
  clock.advance(seconds(39));
  update();
  REQUIRE(giving_way.rate(BackgroundWork::flush) != 0);
  clock.advance(seconds(2));
  update();
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
}

TEST_CASE_METHOD(GivingWayScene, "giving way: steps beside a copy that arrives are no baseline",
                 "[unit][node]") {
  std::shared_ptr<void> receiving = giving_way.begin_receiving();
  train(20);
  train_disturbed(8);
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
  receiving.reset();
  train(20);
  train_disturbed(8);
  REQUIRE(giving_way.rate(BackgroundWork::flush) != 0);
}

TEST_CASE_METHOD(GivingWayScene, "giving way: another trainer of the rank is measured anew",
                 "[unit][node]") {
  train(20);
  giving_way.forget(0);
  train_disturbed(20);
  REQUIRE(giving_way.rate(BackgroundWork::flush) == 0);
}

TEST_CASE("work meter: it counts while anything is under way", "[unit][node]") {
  node::WorkMeter meter;
  const auto at = [](int time) { return Time(seconds(time)); };
  auto first = meter.begin(at(10));
  auto second = meter.begin(at(11));
  REQUIRE(meter.total(at(12)) == seconds(2));
  first.end(at(13));
  REQUIRE(meter.is_under_way());
  second.end(at(14));
  REQUIRE_FALSE(meter.is_under_way());
  REQUIRE(meter.total(at(20)) == seconds(4));
  {
    auto dropped = meter.begin(at(20));
  }
  REQUIRE(meter.total(at(21)) == seconds(5));
  REQUIRE(meter.total(at(30)) == seconds(5));
}

// A flush at the lowest rate there is takes seconds of this disk's virtual time; the last one, of a
// job that is closed, does not.
TEST_CASE("giving way: an engine keeps to flush_rate, but for its last flush", "[unit][node]") {
  MemoryDisk disk;
  disk.put_directory("/scratch");
  OneRank rank(disk, 3 * MiB);
  rank.request.flush_rate = MiB;
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  const auto store = [&](Step step) {
    const Time began = rank.clock.now();
    rank.capture(step);
    REQUIRE(rank.pass_until([&] { return rank.committed >= step; }));
    return began;
  };
  Time began = store(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  REQUIRE(rank.clock.now() - began < seconds(2));  // Nothing was taken before it.
  began = store(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  REQUIRE(rank.clock.now() - began > seconds(1));
  began = store(Step{3});
  REQUIRE(rank.engine->call(rank.session, control::Close{seconds(60)}));
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  REQUIRE(rank.clock.now() - began < seconds(1));
}

}  // namespace ckpt::test
