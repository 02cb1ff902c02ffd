// Goal:   a daemon may die at any call to its storage, on a disk or in a bucket: the steps that
// were
//         published are whole, others are not listed, and the next daemon removes what was left.
// Method: on each place of store_contract_test.cpp, the first daemon's n-th call and all after it
//         fail, for each n (each 11th on a real server); then the second daemon looks, cleans up
//         and looks again.
#include "contract/store_under_test.hpp"

namespace ckpt::test {

namespace {

using Store = std::unique_ptr<StoreUnderTest>;
using Steps = std::vector<format::StepId>;

constexpr std::uint64_t calls_max = 500;  // Far above what one operation needs.

// `act` is called with the first daemon, which dies at each call in turn, and `judge` afterwards,
// with what `act` returned. Returns how many deaths there were.
template <class Act, class Judge>
std::uint64_t die_everywhere(StoreUnderTest& store, Act act, Judge judge) {
  const std::uint64_t stride = store.is_slow() ? 11 : 1;
  std::uint64_t rounds = 0;
  for (bool died = true; died; ++rounds) {
    const std::uint64_t call = rounds * stride;
    CAPTURE(call);
    REQUIRE(call < calls_max);
    store.first().die_at(call);
    const bool succeeded = act();
    died = store.first().revive();
    if (!died) REQUIRE(succeeded);
    judge(succeeded);
  }
  return rounds - 1;
}

void require_no_attempts(StoreUnderTest& store) {
  store.discard_all();
  REQUIRE(store.attempts_left().empty());
}

}  // namespace

TEST_CASE("store: a save that ends at any call leaves the step or nothing",
          "[contract][storage][bucket][deaths]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  store->must_save(step_id(1));
  const std::uint64_t deaths = die_everywhere(
      *store,
      [&] {
        const auto attempt = store->next_attempt();
        return store->run(save(store->site(), made_ranks(step_id(2)), attempt)).has_value();
      },
      [&](bool succeeded) {
        const Steps steps = store->whole_steps();
        REQUIRE(steps.front() == step_id(1));
        REQUIRE(steps.size() <= 2);
        if (succeeded) REQUIRE(steps.back() == step_id(2));
        require_no_attempts(*store);
        REQUIRE(store->whole_steps() == steps);
        if (steps.size() == 2) REQUIRE(store->remove(store->site_of_second(), Step{2}));
      });
  CHECK(deaths > 3);
  store->must_save(step_id(2));
  CHECK(store->whole_steps() == Steps{step_id(1), step_id(2)});
}

TEST_CASE("store: a removal that ends at any call leaves the step or nothing",
          "[contract][storage][bucket][deaths]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  store->must_save(step_id(1));
  store->must_save(step_id(2));
  const std::uint64_t deaths = die_everywhere(
      *store, [&] { return store->remove(store->site(), Step{1}).has_value(); },
      [&](bool succeeded) {
        const Steps steps = store->whole_steps();
        REQUIRE(steps.back() == step_id(2));
        if (succeeded) REQUIRE(steps.size() == 1);
        require_no_attempts(*store);
        REQUIRE(store->whole_steps() == steps);
        if (steps.size() == 1) store->must_save(step_id(1));
      });
  CHECK(deaths > (store->is_slow() ? 0 : 3));
}

TEST_CASE("store: a record whose writer ends at any call is the old one or the new one",
          "[contract][storage][bucket][deaths]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  format::Timelines before;
  before.run = test_run;
  before.history.emplace_back();
  before.history.back().timeline = 1;
  store->must(storage::store_timelines(store->site(), before, store->next_attempt()));
  format::Timelines after = before;
  after.history.emplace_back();
  after.history.back().timeline = 2;
  const std::uint64_t deaths = die_everywhere(
      *store,
      [&] {
        const auto attempt = store->next_attempt();
        return store->run(storage::store_timelines(store->site(), after, attempt)).has_value();
      },
      [&](bool succeeded) {
        storage::Site second = store->site_of_second();
        const auto found = store->must(storage::load_timelines(second, test_run));
        REQUIRE((found == before || found == after));
        if (succeeded) REQUIRE(found == after);
        store->must(storage::store_timelines(second, before, store->next_attempt()));
      });
  CHECK(deaths > 0);
}

TEST_CASE("store: a directory whose first opening ends at any call can be opened",
          "[contract][storage][bucket][deaths]") {
  const Store store = some_store();
  if (!store) return;
  bool was_opened = false;
  die_everywhere(
      *store,
      [&] {
        const auto order = store->run_order();
        was_opened = store->run(storage::open_run_directory(store->site(), order)).has_value();
        return was_opened;
      },
      [&](bool) {
        const auto marker = store->run(storage::read_run_marker(store->site_of_second()));
        if (was_opened) REQUIRE(marker);
        if (!marker) REQUIRE(marker.error().code() == Errc::not_found);
      });
  store->must_save(step_id(1));
  CHECK(store->whole_steps() == Steps{step_id(1)});
}

}  // namespace ckpt::test
