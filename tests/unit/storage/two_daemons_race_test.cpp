// Goal:   two daemons that save, prune, mend `latest` and collect garbage in one directory at once
//         never leave a torn step, two living steps of one number, or no newest step to go on from.
// Method: thousands of operations on a disk in memory. Its calls take random virtual times, so that
//         those of both interleave in the order of a seed. A reader looks at one instant after each
//         change of names, and compares all bytes now and then.
#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "storage/latest.hpp"
#include "storage/left_attempts.hpp"
#include "storage/merge_timelines.hpp"
#include "storage/run_catalog.hpp"
#include "storage/timeline_claim.hpp"
#include "support/sanitized.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t seeds = is_sanitized ? 2 : 5;
constexpr std::uint64_t operations_per_daemon = 250;
constexpr std::uint64_t looks_between_readings = 200;

using History = std::vector<format::TimelineStart>;

// The deeds of both daemons. The directory is compared with them.
struct Deeds {
  std::set<format::StepId> published;  // A daemon heard so.
  std::uint64_t saves = 0, refused = 0, removed = 0, starts = 0, operations = 0;
  bool is_starting = false;  // Starts wait for each other: two_daemons_test has those.
};

class Racer {
 public:
  Racer(storage::Site site, Deeds& deeds, std::uint64_t seed, std::uint64_t first_attempt)
      : site_(std::move(site)), deeds_(deeds), draw_(seed), attempt_(first_attempt) {}

  Task<void> run() {
    CKPT_CO_CHECK(co_await begin());
    for (std::uint64_t index = 0; index < operations_per_daemon; ++index) {
      history_ = co_await read_history();
      ++deeds_.operations;
      switch (draw_.below(12)) {
        case 0:
        case 1:
        case 2:
        case 3:
          CKPT_CO_CHECK(co_await save_one());
          break;
        case 4:
        case 5:
        case 6:
          (void)co_await prune();
          break;
        case 7:
        case 8:
          (void)co_await mend();
          break;
        case 9:
        case 10:
          (void)co_await collect();
          break;
        default:
          if (draw_.one_in(4)) CKPT_CO_CHECK(co_await begin());
      }
    }
    co_return Status();
  }
  // As the operation that is under way has read it.
  const History& history() const { return history_; }

 private:
  asio::awaitable<History> read_history() {
    auto found = co_await storage::load_timelines(site_, test_run);
    REQUIRE(found);
    co_return found->history;
  }
  Task<storage::Catalog> marked_catalog() {
    storage::CatalogOptions options;
    options.run = test_run;
    CKPT_CO_TRY(storage::Catalog catalog, co_await storage::read_catalog(site_, options));
    CKPT_CO_CHECK(co_await storage::mark_abandoned(site_, test_run, catalog));
    co_return catalog;
  }
  // A start: goes on from the newest step, in a timeline of its own.
  Task<void> begin() {
    while (std::exchange(deeds_.is_starting, true)) {
      const Time later = site_.clock().after(std::chrono::milliseconds(1));
      CKPT_CO_CHECK(co_await sleep_until(site_.clock(), later));
    }
    Status begun = co_await begin_alone();
    deeds_.is_starting = false;
    co_return begun;
  }
  Task<void> begin_alone() {
    CKPT_CO_TRY(format::Timelines timelines, co_await storage::load_timelines(site_, test_run));
    const std::uint64_t next =
        timelines.history.empty() ? 1 : timelines.history.back().timeline + 1;
    storage::Claim claim{next, draw_.next(), ++attempt_};
    CKPT_CO_TRY(const auto claimed, co_await storage::claim_timeline(site_, claim));
    CKPT_ASSERT(claimed == storage::Claimed::now);
    std::optional<format::StepId> base;
    if (!timelines.history.empty()) {
      CKPT_CO_TRY(const storage::Catalog catalog, co_await marked_catalog());
      if (const auto* newest = storage::newest_living(catalog)) base = newest->at;
    }
    timelines.run = test_run;
    timelines.history.push_back({next, base});
    CKPT_CO_CHECK(co_await storage::store_timelines(site_, timelines, ++attempt_));
    timeline_ = next;
    step_ = base ? number(base->step) : 0;
    protected_ = base;
    ++deeds_.starts;
    storage::StaleAttempts stale;
    stale.timelines_below = timeline_;
    (void)co_await storage::discard_stale(site_, std::move(stale));
    co_return Status();
  }
  Task<void> save_one() {
    const bool is_again = step_ > 0 && protected_ && draw_.one_in(5);
    const format::StepId at =
        is_again && protected_->timeline == timeline_ ? *protected_ : step_id(++step_, timeline_);
    if (format::is_abandoned(history_, at)) {  // As a daemon that reads the history first.
      if (!draw_.one_in(4)) co_return Status();
      Status begun = co_await begin();
      co_return begun;
    }
    ++deeds_.saves;
    const auto saved = co_await save(site_, made_ranks(at), ++attempt_);
    if (!saved) {
      ++deeds_.refused;
      co_return Status();
    }
    deeds_.published.insert(at);
    protected_ = at;
    co_return Status();
  }
  storage::RetentionOrder order() {
    storage::RetentionOrder order;
    order.run = test_run;
    order.rule.max_ckpt_num = static_cast<std::uint32_t>(1 + draw_.below(3));
    if (protected_) order.protected_steps.push_back(*protected_);
    return order;
  }
  Task<void> prune() {
    storage::CatalogOptions options;
    options.run = test_run;
    CKPT_CO_TRY(storage::Catalog catalog, co_await storage::read_catalog(site_, options));
    CKPT_CO_TRY(const auto deleted, co_await storage::apply_retention(site_, order(), catalog));
    deeds_.removed += deleted.size();
    co_return Status();
  }
  Task<void> mend() {
    CKPT_CO_TRY(storage::Catalog catalog, co_await marked_catalog());
    CKPT_CO_TRY(const bool is_mended,
                co_await storage::mend_latest(site_, test_run, std::move(catalog), ++attempt_));
    (void)is_mended;
    co_return Status();
  }
  // As `ckpt gc` does, which protects no step.
  Task<void> collect() {
    CKPT_CO_TRY(storage::Catalog catalog, co_await marked_catalog());
    storage::RetentionOrder wanted = order();
    wanted.protected_steps.clear();
    CKPT_CO_TRY(const auto superfluous,
                co_await storage::choose_superfluous(site_, std::move(wanted), catalog));
    for (const storage::Checkpoint& each : superfluous) {
      const History now = co_await read_history();
      if (now != history_) co_return Status();
      const Status removed =
          co_await storage::remove_checkpoint(site_, each, test_run, "collected");
      deeds_.removed += removed ? 1 : 0;
    }
    co_return Status();
  }

  const storage::Site site_;
  Deeds& deeds_;
  Random draw_;
  std::uint64_t attempt_;
  std::uint64_t timeline_ = 0, step_ = 0;
  std::optional<format::StepId> protected_;
  History history_;
};

class Race : public StorageFixture {
 public:
  explicit Race(std::uint64_t seed) : StorageFixture(seed) {
    disk.set_latency(std::chrono::microseconds(1), std::chrono::milliseconds(1));
    open();
    for (std::uint64_t index = 0; index < 2; ++index) {
      fronts_.push_back(std::make_unique<MemoryFileSystem>(disk, &clock));
      racers_.push_back(
          std::make_unique<Racer>(storage::Site(*fronts_.back(), clock, "/scratch/job"), deeds,
                                  seed * 2 + index, (index + 1) << 32));
    }
    disk.set_hook([this](std::string_view verb, const std::string& path) {
      has_changed_ = has_changed_ ||
                     (verb == "rename" && path.find("step-") != std::string::npos) ||
                     path.ends_with("timelines.json");
      return 0;
    });
  }
  void run_all() {
    std::vector<Pending<void>> under_way;
    for (const auto& racer : racers_) under_way.push_back(start(context, racer->run()));
    const auto are_done = [&] {
      return std::ranges::all_of(under_way, [](const auto& each) { return each.is_done(); });
    };
    clock.poll();
    while (!are_done()) {
      REQUIRE(clock.advance_to_next());
      if (std::exchange(has_changed_, false)) look();
    }
    for (Pending<void>& each : under_way)
      REQUIRE((each.result() ? "" : each.result().error().message()) == "");
    look();
    read_all();
    REQUIRE(missing_.empty());
    for (const format::StepId& at : deeds.published) REQUIRE(ever_listed_.contains(at));
  }
  Deeds deeds;

 private:
  // Nothing else runs meanwhile: the reader's calls take no time.
  void look() {
    storage::CatalogOptions options;
    options.run = test_run;
    options.make_durable = false;
    const auto found = run(storage::read_catalog(site, options));
    const auto timelines = run(storage::load_timelines(site, test_run));
    REQUIRE((found ? "" : found.error().message()) == "");
    REQUIRE(timelines);
    for (const storage::Rejected& rejected : found->rejected) {
      CAPTURE(rejected.name, rejected.reason);
      REQUIRE_FALSE(storage::is_damage(rejected));
    }
    std::set<format::StepId> now;
    std::set<Step> living;
    for (const storage::Checkpoint& each : found->checkpoints) {
      now.insert(each.at);
      if (format::is_abandoned(timelines->history, each.at)) continue;
      CAPTURE(each.name, shown(now), shown(timelines->history));
      REQUIRE(living.insert(each.at.step).second);
    }
    for (const format::StepId& at : listed_)
      if (!now.contains(at) && !is_superfluous(at, now, timelines->history))
        missing_.emplace(at, deeds.operations);
    std::erase_if(missing_, [&](const auto& each) {
      return now.contains(each.first) || is_superfluous(each.first, now, timelines->history);
    });
    for (const auto& [at, since] : missing_) {
      CAPTURE(at.timeline, number(at.step), shown(now), shown(timelines->history));
      REQUIRE(deeds.operations <= since + 20);
    }
    listed_ = std::move(now);
    ever_listed_.insert(listed_.begin(), listed_.end());
    if (++looks_ % looks_between_readings == 0) read_all();
  }
  // A newer one is there, or it is abandoned: by the history, or as a daemon knew it that removed
  // it.
  bool is_superfluous(const format::StepId& at, const std::set<format::StepId>& now,
                      const History& history) const {
    const auto explains = [&](const History& known) {
      return format::is_abandoned(known, at) ||
             std::ranges::any_of(now, [&](const format::StepId& other) {
               return other > at && !format::is_abandoned(known, other);
             });
    };
    return explains(history) || std::ranges::any_of(racers_, [&](const auto& each) {
             return explains(each->history());
           });
  }
  static std::string shown(const std::set<format::StepId>& steps) {
    std::string text;
    for (const format::StepId& at : steps)
      text += fmt::format("{}/{} ", at.timeline, number(at.step));
    return text;
  }
  // Only what counts: the last few.
  static std::string shown(const History& history) {
    std::string text;
    for (std::size_t index = history.size() - std::min<std::size_t>(history.size(), 4);
         index < history.size(); ++index) {
      const auto& base = history[index].base;
      text += fmt::format("{} from {}/{} ", history[index].timeline, base ? base->timeline : 0,
                          base ? number(base->step) : 0);
    }
    return text;
  }
  void read_all() { REQUIRE(whole_steps().size() == listed_.size()); }

  std::vector<std::unique_ptr<MemoryFileSystem>> fronts_;
  std::vector<std::unique_ptr<Racer>> racers_;
  bool has_changed_ = false;
  std::uint64_t looks_ = 0;
  std::set<format::StepId> listed_, ever_listed_;
  // Since how many operations. A removal that took another step than it was to puts that back.
  std::map<format::StepId, std::uint64_t> missing_;
};

}  // namespace

TEST_CASE("two daemons race: no step is torn, doubled or lost, whatever their calls' order",
          "[unit][storage]") {
  Deeds all;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    Race race(seed);
    race.run_all();
    all.operations += race.deeds.operations;
    all.saves += race.deeds.saves;
    all.refused += race.deeds.refused;
    all.removed += race.deeds.removed;
    all.starts += race.deeds.starts;
  }
  CHECK(all.operations >= 500 * seeds);
  CAPTURE(all.saves, all.refused, all.removed, all.starts);
  CHECK(all.saves > 2 * all.refused);
  CHECK(all.refused > seeds);  // Else neither would stand in the other's way.
  CHECK(all.removed > all.operations / 20);
  CHECK(all.starts > 2 * seeds);
}

TEST_CASE("two daemons race: a step that took the name of a listed one is not removed for it",
          "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(1));
  scene.must_save(step_id(2));
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}, {2, step_id(1)}};
  REQUIRE(scene.run(storage::store_timelines(scene.site, timelines, 1)));
  storage::Catalog listed = scene.catalog();  // Its step 2 is abandoned.
  scene.must_save(step_id(2, 2));
  storage::RetentionOrder order;
  order.run = test_run;
  order.rule.max_ckpt_num = 1;
  const auto deleted = scene.run(storage::apply_retention(scene.site, order, listed));
  REQUIRE(deleted);
  CHECK(deleted->empty());
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(1), step_id(2, 2)});
}

}  // namespace ckpt::test
