// Goal:   a crash between any two operations costs no checkpoint that was durable, and never shows
//         one that is not whole; what it leaves behind is found and removed.
// Method: each protocol is cut off after every number of operations; then the disk keeps nothing,
//         everything, or seeded subsets of what was not synced, in sectors of 4 KiB and of 512
//         bytes; then everything that is listed is read and compared byte by byte, the next save
//         must work, and nothing may be left over. The states are counted: 4,000 at least.
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

struct CrashMode {
  Survival survival;
  std::uint64_t seed;
  std::uint64_t torn_bytes = 4 * KiB;
};

std::vector<CrashMode> make_crash_modes() {
  constexpr std::uint64_t seeds_per_sector = 8;
  std::vector<CrashMode> modes{{Survival::nothing, 1}, {Survival::everything, 1}};
  for (const std::uint64_t torn_bytes : {4 * KiB, std::uint64_t{512}}) {
    for (std::uint64_t index = 0; index < seeds_per_sector; ++index)
      modes.push_back({Survival::random, modes.size(), torn_bytes});
  }
  return modes;
}

// The states of each protocol: cuts times modes. Each test requires its own.
struct StatesMin {
  std::uint64_t save = 1'000;
  std::uint64_t save_again = 1'500;  // On each of two file systems.
  std::uint64_t retention = 1'400;
  std::uint64_t deletion_log = 800;
  std::uint64_t timelines = 100;
  std::uint64_t first_opening = 300;

  constexpr std::uint64_t all() const {
    return save + 2 * save_again + retention + deletion_log + timelines + first_opening;
  }
};
constexpr StatesMin states_min;
static_assert(states_min.all() >= 4'000);

// Prepares a disk, cuts `act` off after each number of operations, crashes, and lets `judge` look.
// `act` returns whether it reported success. Returns how many states were judged.
template <class Prepare, class Act, class Judge>
[[nodiscard]] std::uint64_t crash_everywhere(Prepare prepare, Act act, Judge judge) {
  std::uint64_t states = 0;
  for (const CrashMode& mode : make_crash_modes()) {
    std::uint64_t cut = 0;
    for (bool is_done = false; !is_done; ++cut) {
      REQUIRE(cut < operations_max);
      StorageFixture scene(mode.seed * 1'000 + cut);
      scene.disk.set_torn_bytes(mode.torn_bytes);
      prepare(scene);
      MemoryDisk::Fault fault;
      fault.is_sticky = true;
      fault.is_partial = cut % 2 == 1;
      const std::uint64_t before = scene.disk.operations();
      scene.disk.fail_at(cut, fault);
      const bool succeeded = act(scene);
      is_done = scene.disk.operations() - before <= cut;
      scene.disk.clear_faults();
      scene.disk.crash(mode.survival);
      CAPTURE(cut, static_cast<int>(mode.survival), mode.seed, mode.torn_bytes, succeeded);
      judge(scene, succeeded);
      ++states;
      // After any fault the job goes on.
      scene.open();
      scene.discard_stale();
      scene.must_save(step_id(50, 9));
      REQUIRE(scene.whole_steps().back() == step_id(50, 9));
      REQUIRE(scene.leftovers().empty());
    }
    REQUIRE(cut > 1);
  }
  return states;
}

bool contains(const std::vector<format::StepId>& steps, format::StepId at) {
  return std::find(steps.begin(), steps.end(), at) != steps.end();
}

}  // namespace

TEST_CASE("crash: a save that is cut off leaves the step before, or both", "[unit][storage]") {
  const std::uint64_t states = crash_everywhere(
      [](StorageFixture& scene) {
        scene.open();
        scene.must_save(step_id(1));
      },
      [](StorageFixture& scene) { return scene.try_save(step_id(2)).has_value(); },
      [](StorageFixture& scene, bool succeeded) {
        const auto steps = scene.whole_steps();
        REQUIRE(contains(steps, step_id(1)));
        if (succeeded) REQUIRE(contains(steps, step_id(2)));
      });
  CHECK(states >= states_min.save);
}

TEST_CASE("crash: a step that is saved again is there all the time", "[unit][storage]") {
  const bool has_exchange = GENERATE(true, false);
  const std::uint64_t states = crash_everywhere(
      [&](StorageFixture& scene) {
        scene.disk.set_exchange_supported(has_exchange);
        scene.open();
        scene.must_save(step_id(2));
      },
      [](StorageFixture& scene) { return scene.try_save(step_id(2, 3)).has_value(); },
      [](StorageFixture& scene, bool succeeded) {
        const auto steps = scene.whole_steps();
        REQUIRE((contains(steps, step_id(2)) || contains(steps, step_id(2, 3))));
        if (succeeded) REQUIRE(contains(steps, step_id(2, 3)));
      });
  CHECK(states >= states_min.save_again);
}

TEST_CASE("crash: steps that retention keeps are whole, and those it deletes gone or whole",
          "[unit][storage]") {
  const std::uint64_t states = crash_everywhere(
      [](StorageFixture& scene) {
        scene.open();
        for (const std::uint64_t step : {1, 2, 3}) scene.must_save(step_id(step));
      },
      [](StorageFixture& scene) {
        const auto deleted = scene.retain(1);  // Unread ones stay until the next time.
        return deleted && deleted->size() == 2;
      },
      [](StorageFixture& scene, bool succeeded) {
        const auto steps = scene.whole_steps();
        REQUIRE(contains(steps, step_id(3)));
        if (succeeded) REQUIRE(steps == std::vector{step_id(3)});
        const auto again = scene.retain(1);
        REQUIRE(again.has_value());
        REQUIRE(scene.whole_steps() == std::vector{step_id(3)});
      });
  CHECK(states >= states_min.retention);
}

TEST_CASE("crash: what is being deleted is in the log, and what was saved before it",
          "[unit][storage]") {
  const std::uint64_t states = crash_everywhere(
      [](StorageFixture& scene) {
        scene.open();
        for (const std::uint64_t step : {1, 2}) scene.must_save(step_id(step));
      },
      [](StorageFixture& scene) { return scene.retain(1).has_value(); },
      [](StorageFixture& scene, bool) {
        if (scene.disk.exists("/scratch/job/step-000000001/manifest.json")) return;
        const std::string log = scene.disk.content("/scratch/job/.libckpt/log.jsonl");
        const std::size_t saved = log.find("\"operation\":\"save\",\"path\":\"step-000000001\"");
        const std::size_t deleted =
            log.find("\"operation\":\"delete\",\"path\":\"step-000000001\"");
        REQUIRE(saved != std::string::npos);
        REQUIRE(deleted != std::string::npos);
        REQUIRE(saved < deleted);
      });
  CHECK(states >= states_min.deletion_log);
}

TEST_CASE("crash: the history of timelines is the old one or the new one", "[unit][storage]") {
  format::Timelines before;
  before.run = test_run;
  before.history.resize(1);
  before.history[0].timeline = 1;
  format::Timelines after = before;
  after.history.resize(2);
  after.history[1].timeline = 2;
  after.history[1].base = step_id(5);
  const std::uint64_t states = crash_everywhere(
      [&](StorageFixture& scene) {
        scene.open();
        const Status stored = scene.run(storage::store_timelines(scene.site, before, 77));
        REQUIRE(stored.has_value());
      },
      [&](StorageFixture& scene) {
        return scene.run(storage::store_timelines(scene.site, after, 78)).has_value();
      },
      [&](StorageFixture& scene, bool succeeded) {
        const auto loaded = scene.run(storage::load_timelines(scene.site, test_run));
        REQUIRE((loaded ? "" : loaded.error().message()) == "");
        REQUIRE((*loaded == before || *loaded == after));
        if (succeeded) REQUIRE(*loaded == after);
      });
  CHECK(states >= states_min.timelines);
}

TEST_CASE("crash: a directory that was being opened for the first time can be opened",
          "[unit][storage]") {
  const std::uint64_t states = crash_everywhere(
      [](StorageFixture&) {},
      [](StorageFixture& scene) {
        storage::RunOrder order;
        order.job = "job";
        order.fresh_run = test_run;
        order.attempt = 5;
        return scene.run(storage::open_run_directory(scene.site, order)).has_value();
      },
      [](StorageFixture& scene, bool succeeded) {
        const auto marker = scene.run(storage::read_run_marker(scene.site));
        if (succeeded) REQUIRE(marker.has_value());
        if (!marker) REQUIRE(marker.error().code() == Errc::not_found);
      });
  CHECK(states >= states_min.first_opening);
}

}  // namespace ckpt::test
