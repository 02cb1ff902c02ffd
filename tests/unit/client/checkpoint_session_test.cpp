// Goal:   what a trainer saves is what its tensors held at the call, whatever it does with them as
//         soon as it may; nothing but the first save waits; and every step that was due and was not
//         captured is counted and told.
// Method: a FakeEngine keeps every step's bytes; tensors are stamped with the step, overwritten at
//         the earliest allowed instant, added, removed, resized; each step is then restored.
#include "client/checkpoint_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "base/random.hpp"
#include "support/captured_log.hpp"
#include "support/patience.hpp"
#include "unit/client/fake_engine.hpp"

namespace ckpt::client {

namespace {

using Catch::Contains;
using test::FakeNode;
using test::soon;

constexpr std::uint64_t chunk = 64 * KiB;

// SavingTrainer: tensors in memory of its own, and a session that saves them.
class SavingTrainer {
 public:
  explicit SavingTrainer(std::shared_ptr<FakeNode> node_in = std::make_shared<FakeNode>(),
                         Options options = {})
      : node(std::move(node_in)),
        session(with_job(std::move(options)), test::link_to(node), chunk) {}

  void add(const std::string& name, std::size_t bytes, bool guarded = true) {
    memory[name] = std::make_unique<std::vector<std::byte>>(bytes);
    TensorRef tensor;
    tensor.data = memory[name]->data();
    tensor.shape = {static_cast<std::int64_t>(bytes)};
    tensor.guarded = guarded;
    REQUIRE(session.add(name, tensor));
  }
  TensorRef tensor(const std::string& name) {
    TensorRef found;
    found.data = memory.at(name)->data();
    found.shape = {static_cast<std::int64_t>(memory.at(name)->size())};
    return found;
  }
  void remove(const std::string& name) {
    REQUIRE(session.remove(name));
    memory.erase(name);
  }
  void stamp(std::uint64_t seed) {
    for (auto& [name, bytes] : memory) {
      Random random(seed * 1000 + bytes->size());
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random.next());
    }
  }
  std::map<std::string, std::vector<std::byte>> contents() const {
    std::map<std::string, std::vector<std::byte>> out;
    for (const auto& [name, bytes] : memory) out[name] = *bytes;
    return out;
  }
  Result<SaveOutcome> save(std::uint64_t step) { return session.save(Step{step}, {}, Due::always); }
  SaveOutcome saved(std::uint64_t step) {
    const auto outcome = save(step);
    if (!outcome) FAIL(outcome.error().message());
    return *outcome;
  }

  std::shared_ptr<FakeNode> node;
  std::map<std::string, std::unique_ptr<std::vector<std::byte>>> memory;
  CheckpointSession session;

 private:
  static Options with_job(Options options) {
    Log::set_level(LogLevel::error);
    options.job = "unit";
    return options;
  }
};

std::map<std::string, std::vector<std::byte>> contents_of(const test::FakeShard& shard) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const auto& place : shard.record->layout.tensors) {
    const auto bytes = std::span(shard.bytes).subspan(place.extent.offset, place.extent.bytes);
    out[place.name].assign(bytes.begin(), bytes.end());
  }
  return out;
}

void require_sound(const test::FakeShard& shard) {
  const Status valid = format::validate(*shard.record);
  if (!valid) FAIL(valid.error().message());
  for (std::size_t i = 0; i < shard.record->chunk_crcs.size(); ++i) {
    const format::Extent extent = shard.record->chunk(i);
    REQUIRE(crc32(std::span(shard.bytes).subspan(extent.offset, extent.bytes)) ==
            shard.record->chunk_crcs[i]);
  }
}

void flip_bit(test::FakeShard& shard, std::uint64_t offset) {
  shard.bytes[offset] ^= std::byte{1};
}

}  // namespace

TEST_CASE("checkpoint session: consecutive captures hold their own step's bytes",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 3 * chunk + 5);
  trainer.add("running_mean", 1000, false);
  std::vector<std::map<std::string, std::vector<std::byte>>> expected;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    if (step % 5 == 0) {  // The framework moves a tensor to another place.
      trainer.remove("weight");
      trainer.add("weight", 3 * chunk + 5);
    }
    trainer.stamp(step);
    expected.push_back(trainer.contents());
    REQUIRE(trainer.saved(step) == SaveOutcome::started);
    REQUIRE(trainer.session.guard({}));
    trainer.stamp(999);
  }
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    require_sound(trainer.node->shards[i]);
    REQUIRE(contents_of(trainer.node->shards[i]) == expected[i]);
    REQUIRE(number(trainer.node->shards[i].record->id.at.step) == i + 1);
  }
  // Moving a tensor is no new layout.
  REQUIRE(trainer.node->layouts.size() == 1);
}

TEST_CASE("checkpoint session: a held capture is sent once judged, before or after its end",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 3 * chunk);
  std::atomic<std::uint64_t> copied{0};
  REQUIRE(trainer.session.hold_captures([&](Step step) { copied = number(step); }));
  trainer.stamp(1);
  const auto expected = trainer.contents();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.guard({}));
  // A thread of ours copied the last byte, and then tells so.
  while (copied != 1) std::this_thread::yield();
  REQUIRE(trainer.node->shards.empty());
  REQUIRE(trainer.session.settle(Step{2}, {}));  // Another step.
  REQUIRE(trainer.node->shards.empty());
  REQUIRE(trainer.session.settle(Step{1}, {}));
  REQUIRE(trainer.session.settle(Step{1}, fail(Errc::unavailable, "too late")));
  REQUIRE(trainer.node->shards.size() == 1);
  require_sound(trainer.node->shards[0]);
  REQUIRE(contents_of(trainer.node->shards[0]) == expected);

  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.session.settle(Step{2}, {}));  // Perhaps while its bytes are still copied.
  REQUIRE(trainer.session.hold_captures({}));
  REQUIRE(trainer.saved(3) == SaveOutcome::started);
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 3);
  REQUIRE(trainer.node->abandoned == 0);
}

TEST_CASE("checkpoint session: a held capture that is not whole, or is not judged, is never seen",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 3 * chunk);
  REQUIRE(trainer.session.hold_captures([](Step) {}));
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.guard({}));
  REQUIRE(trainer.session.settle(Step{1}, fail(Errc::unavailable, "weight was written")));
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE_THAT(trainer.session.stats().last_error, Contains("weight was written"));
  REQUIRE(trainer.session.stats().failed == 1);
  REQUIRE(trainer.saved(3) == SaveOutcome::started);  // Nobody has judged the one before.
  REQUIRE(trainer.session.stats().failed == 2);
  REQUIRE_THAT(trainer.session.stats().last_error, Contains("step 2"));
  REQUIRE(trainer.session.settle(Step{3}, {}));
  REQUIRE(trainer.saved(4) == SaveOutcome::started);
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 1);
  REQUIRE(number(trainer.node->shards[0].record->id.at.step) == 3);
  REQUIRE(trainer.node->abandoned == 3);
  const std::vector<Step> skipped{Step{1}, Step{2}, Step{4}};
  REQUIRE(trainer.node->skipped == skipped);
}

TEST_CASE(
    "checkpoint session: unguarded tensors may change at once, and even without a guard "
    "the next save sees to the rest",
    "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("guarded", 5 * chunk);
  trainer.add("open", 5 * chunk, false);
  trainer.stamp(1);
  const auto expected = trainer.contents();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  std::fill(trainer.memory["open"]->begin(), trainer.memory["open"]->end(), std::byte{7});
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.session.guard({}));
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(contents_of(trainer.node->shards[0]) == expected);
  REQUIRE(contents_of(trainer.node->shards[1]) == trainer.contents());
}

TEST_CASE("checkpoint session: memory may go when save, or guard, has returned", "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("guarded", 9 * chunk);
  trainer.add("open", 9 * chunk, false);
  trainer.stamp(1);
  const auto expected = trainer.contents();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  trainer.memory["open"]->assign(9 * chunk, std::byte{0});
  trainer.memory["open"].reset();
  REQUIRE(trainer.session.guard({}));
  trainer.memory["guarded"].reset();
  trainer.memory.clear();
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(contents_of(trainer.node->shards[0]) == expected);
}

TEST_CASE("checkpoint session: a tensor is free when remove has returned", "[unit][client]") {
  (void)GENERATE(range(0, 4));  // A busy machine may end the copy before anything is overwritten.
  SavingTrainer trainer;
  trainer.add("guarded", 128 * MiB);  // Long enough to be copied while it is overwritten.
  auto& memory = *trainer.memory.at("guarded");
  std::ranges::fill(memory, std::byte{1});
  const auto expected = trainer.contents();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.remove("guarded"));
  std::fill(memory.rbegin(), memory.rend(), std::byte{2});
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(contents_of(trainer.node->shards[0]) == expected);
}

TEST_CASE("checkpoint session: tensors are added, removed and resized between saves",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("a", 100);
  std::vector<std::map<std::string, std::vector<std::byte>>> expected;
  const auto save = [&](std::uint64_t step) {
    trainer.stamp(step);
    expected.push_back(trainer.contents());
    REQUIRE(trainer.saved(step) == SaveOutcome::started);
    REQUIRE(trainer.session.guard({}));
  };
  save(1);
  trainer.add("b", 2 * chunk);
  save(2);
  trainer.remove("a");
  save(3);
  trainer.remove("b");
  trainer.add("b", chunk);
  save(4);
  save(5);
  std::vector<std::byte> blob(10);
  REQUIRE(trainer.session.add_blob("rng", blob));
  save(6);
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    require_sound(trainer.node->shards[i]);
    REQUIRE(contents_of(trainer.node->shards[i]) == expected[i]);
  }
  std::vector<std::uint32_t> versions;
  for (const auto& layout : trainer.node->layouts) versions.push_back(layout.version);
  REQUIRE(versions == std::vector<std::uint32_t>{1, 2, 3, 4, 5});
}

TEST_CASE("checkpoint session: every dtype, empty and 0-d tensors and ties come back",
          "[unit][client]") {
  SavingTrainer trainer;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte> shared(512, std::byte{5});
  for (int type = 0; type <= static_cast<int>(DType::c64); ++type) {
    TensorRef tensor;
    tensor.dtype = static_cast<DType>(type);
    memory.emplace_back(3 * size_of(tensor.dtype), static_cast<std::byte>(type + 1));
    tensor.shape = {3, 1};
    tensor.data = memory.back().data();
    REQUIRE(trainer.session.add("type" + std::to_string(type), tensor));
  }
  TensorRef scalar;
  scalar.dtype = DType::f32;
  float value = 1.5f;
  scalar.data = &value;
  REQUIRE(trainer.session.add("scalar", scalar));
  TensorRef empty;
  empty.shape = {0, 7};
  REQUIRE(trainer.session.add("empty", empty));
  TensorRef tied;
  tied.data = shared.data();
  tied.shape = {512};
  REQUIRE(trainer.session.add("embed", tied));
  REQUIRE(trainer.session.add("head", tied));
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.guard({}));
  const auto expected = memory;
  for (auto& bytes : memory) std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::fill(shared.begin(), shared.end(), std::byte{0});
  value = 0;
  const auto restored = trainer.session.restore({});
  REQUIRE(restored);
  REQUIRE(restored->step == Step{1});
  REQUIRE(memory == expected);
  REQUIRE(value == 1.5f);
  REQUIRE(shared == std::vector<std::byte>(512, std::byte{5}));
}

TEST_CASE("checkpoint session: ten thousand small tensors", "[unit][client]") {
  SavingTrainer trainer;
  for (int i = 0; i < 10'000; ++i) trainer.add("t" + std::to_string(i), 64, i % 3 != 0);
  trainer.stamp(3);
  const auto expected = trainer.contents();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.guard({}));
  trainer.stamp(4);
  REQUIRE(trainer.session.restore({}));
  REQUIRE(trainer.contents() == expected);
}

TEST_CASE("checkpoint session: blobs are saved at the call and come back", "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  std::vector<std::byte> rng(16, std::byte{1});
  {
    SavingTrainer trainer(node);
    trainer.add("weight", 100);
    REQUIRE(trainer.session.add_blob("rng", rng));
    const std::vector<std::byte> loader(700, std::byte{2});
    REQUIRE(trainer.session.set_blob("loader", loader));
    REQUIRE(trainer.saved(1) == SaveOutcome::started);
    std::fill(rng.begin(), rng.end(), std::byte{9});
    const std::vector<std::byte> shorter(3, std::byte{3});
    REQUIRE(trainer.session.set_blob("loader", shorter));
    REQUIRE(trainer.saved(2) == SaveOutcome::started);
  }
  SavingTrainer trainer(node);
  trainer.add("weight", 100);
  REQUIRE(trainer.session.add_blob("rng", rng));
  REQUIRE_FALSE(trainer.session.blob("loader"));
  REQUIRE(trainer.session.restore({.step = Step{1}}));
  REQUIRE(rng == std::vector<std::byte>(16, std::byte{1}));
  REQUIRE(trainer.session.blob("loader")->size() == 700);
  REQUIRE(trainer.session.restore({.step = Step{2}}));
  REQUIRE(rng == std::vector<std::byte>(16, std::byte{9}));
  REQUIRE(trainer.session.blob("loader")->size() == 3);
  REQUIRE((*trainer.session.blob("loader"))[2] == std::byte{3});
}

namespace {

// None: the capture has no blob for them.
std::optional<format::Metrics> metrics_of(const test::FakeShard& shard) {
  const auto& names = shard.record->blob_names;
  const auto found = std::ranges::find(names, format::metrics_blob_name);
  if (found == names.end()) return std::nullopt;
  const format::Extent blob = shard.record->blobs[static_cast<std::size_t>(found - names.begin())];
  if (blob.bytes == 0) return format::Metrics();
  const auto* text = reinterpret_cast<const char*>(shard.bytes.data() + blob.offset);
  return format::parse_metrics({text, blob.bytes}).value();
}

}  // namespace

TEST_CASE("checkpoint session: metrics go with one save, and never stop it", "[unit][client]") {
  const auto node = std::make_shared<FakeNode>();
  const auto metrics_of_newest = [&] { return metrics_of(node->shards.back()); };
  const auto capture = [](SavingTrainer& trainer, std::uint64_t step) {
    REQUIRE(trainer.saved(step) == SaveOutcome::started);
    REQUIRE(trainer.session.wait(Step{step}, Level::captured, soon()));
  };
  Options options;
  SECTION("that are expected take no new Slots") {
    options.keep_best = 1;
    SavingTrainer trainer(node, options);
    trainer.add("weight", 100);
    capture(trainer, 1);
    REQUIRE(trainer.session.set_metric("loss", 0.5));
    capture(trainer, 2);
    CHECK(node->layouts.size() == 1);
    CHECK(metrics_of_newest() == format::Metrics{{"loss", 0.5}});
  }
  SECTION("are those of their own step") {
    {
      SavingTrainer trainer(node);
      trainer.add("weight", 100);
      capture(trainer, 1);
      CHECK_FALSE(metrics_of_newest());
      REQUIRE(trainer.session.set_metric("loss", 1));
      REQUIRE(trainer.session.set_metric("loss", 0.25));
      REQUIRE(trainer.session.set_metric("nothing", std::nan("")));
      REQUIRE(trainer.session.set_metric("gone", 3));
      REQUIRE(trainer.session.set_metric("gone", std::numeric_limits<double>::infinity()));
      capture(trainer, 2);
      CHECK(metrics_of_newest() == format::Metrics{{"loss", 0.25}});
      capture(trainer, 3);
      CHECK(metrics_of_newest() == format::Metrics());
      REQUIRE(trainer.session.set_metric("loss", 7));
      REQUIRE_FALSE(trainer.save(3));  // It does not grow; its metric is not that of the next one.
      capture(trainer, 4);
      CHECK(metrics_of_newest() == format::Metrics());
    }
    SavingTrainer trainer(node);
    trainer.add("weight", 100);
    REQUIRE(trainer.session.restore({.step = Step{2}}));
    capture(trainer, 5);
    CHECK(metrics_of_newest() == format::Metrics());
  }
  SECTION("without room are left out") {
    options.blob_capacity = 50;
    SavingTrainer trainer(node, options);
    trainer.add("weight", 100);
    REQUIRE(trainer.session.set_metric("loss", 1));
    capture(trainer, 1);
    CHECK_FALSE(metrics_of_newest());
  }
  SECTION("have names, and a limit") {
    SavingTrainer trainer(node);
    CHECK_FALSE(trainer.session.set_metric("", 1));
    for (std::size_t index = 0; index < format::metrics_max; ++index)
      REQUIRE(trainer.session.set_metric(std::to_string(index), 1));
    CHECK(trainer.session.set_metric("one more", 1).error().code() == Errc::exhausted);
    CHECK(trainer.session.set_metric("0", 2));
  }
}

TEST_CASE("checkpoint session: blobs that cannot be kept or brought back are refused",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  Options options;
  options.blob_capacity = 100;
  SavingTrainer trainer(node, options);
  std::vector<std::byte> small(60);
  REQUIRE(trainer.session.add_blob("rng", small));
  const Status too_large = trainer.session.set_blob("loader", std::vector<std::byte>(41));
  REQUIRE_FALSE(too_large);
  REQUIRE(too_large.error().code() == Errc::exhausted);
  REQUIRE_THAT(too_large.error().text(), Contains("101") && Contains("100"));
  REQUIRE(trainer.session.set_blob("loader", std::vector<std::byte>(40)));
  REQUIRE_FALSE(trainer.session.add_blob("rng", small));
  REQUIRE_FALSE(trainer.session.set_blob("rng", small));
  REQUIRE_FALSE(trainer.session.add_blob("", small));
  REQUIRE(trainer.saved(1) == SaveOutcome::started);

  SavingTrainer other(node, options);
  SECTION("of another size") {
    REQUIRE(other.session.add_blob("rng", std::span(small).first(59)));
    const auto restored = other.session.restore({});
    REQUIRE_FALSE(restored);
    REQUIRE(restored.error().code() == Errc::invalid_argument);
    REQUIRE_THAT(restored.error().text(), Contains("59 bytes here and 60 there"));
  }
  SECTION("missing") {
    REQUIRE(other.session.add_blob("other", small));
    const auto restored = other.session.restore({});
    REQUIRE_FALSE(restored);
    REQUIRE_THAT(restored.error().text(), Contains("\"other\" is not in it"));
  }
}

TEST_CASE("checkpoint session: with no free Slot a step is skipped, counted and told",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.node->holds_slots = true;
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_no_slot);
  REQUIRE(trainer.saved(4) == SaveOutcome::skipped_no_slot);
  trainer.node->free_slot(0);
  const auto again = trainer.session.save(Step{4}, {}, Due::always);
  REQUIRE_FALSE(again);
  REQUIRE_THAT(again.error().text(), Contains("save step 4: it was skipped"));
  REQUIRE(trainer.saved(5) == SaveOutcome::started);
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{3}, Step{4}});
  REQUIRE(trainer.session.close(soon()));
  const Stats stats = trainer.session.stats();
  REQUIRE(stats.saves_started == 3);
  REQUIRE(stats.skipped_no_slot == 2);
  REQUIRE(stats.failed == 1);
  REQUIRE(stats.bytes_captured == 3 * trainer.node->shards[0].record->bytes);
  REQUIRE(stats.held.count() > 0);
  REQUIRE(stats.held_max <= stats.held);
  REQUIRE(stats.captured == Step{5});
}

TEST_CASE("checkpoint session: without a daemon steps are skipped and training goes on",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  trainer.node->go_away();
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_unavailable);
  trainer.node->come_back();
  REQUIRE(trainer.saved(3) == SaveOutcome::started);
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{2}});
  REQUIRE(trainer.session.stats().skipped_unavailable == 1);
  REQUIRE_FALSE(trainer.session.stats().last_error.empty());
}

TEST_CASE("checkpoint session: steps are skipped while a larger layout gets its Slots",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  trainer.add("more", 3 * chunk);
  trainer.node->is_slow = true;
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_unavailable);
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_unavailable);
  trainer.node->finish_slots();
  REQUIRE(trainer.saved(4) == SaveOutcome::started);
  REQUIRE(trainer.node->layouts.size() == 2);
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{2}, Step{3}});
}

TEST_CASE("checkpoint session: a step reported as captured has been counted", "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  const auto trains = std::this_thread::get_id();
  std::optional<std::uint64_t> counted;
  std::promise<void> reached, looked;
  trainer.node->on_filled = [&] {
    if (std::this_thread::get_id() == trains) {  // The copies had ended before save() returned.
      counted = trainer.session.stats().bytes_captured;
      return;
    }
    reached.set_value();
    looked.get_future().wait();
  };
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  if (!counted) {
    reached.get_future().wait();
    counted = trainer.session.stats().bytes_captured;
    looked.set_value();
  }
  REQUIRE(counted >= 100u);
  REQUIRE(trainer.session.close(soon()));
}

TEST_CASE("checkpoint session: a wait names the deadline that it met, and its length",
          "[unit][client]") {
  Options options;
  options.open_deadline = std::chrono::milliseconds(0);
  options.restore_deadline = std::chrono::milliseconds(0);
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  trainer.node->is_slow = true;
  for (const Status& late : {trainer.session.prepare(), trainer.session.start_fresh()}) {
    REQUIRE_FALSE(late);
    REQUIRE(late.error().code() == Errc::unavailable);
    REQUIRE_THAT(late.error().text(), Contains("not within open_deadline, which is 0"));
  }
  // Where there is nothing to restore, nobody waits for its Slots.
  REQUIRE(trainer.session.restore({}).error().code() == Errc::not_found);
  trainer.node->shards.resize(1);
  // A restore is worth waiting longer for.
  const auto restored = trainer.session.restore({});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::unavailable);
  REQUIRE_THAT(restored.error().text(), Contains("not within restore_deadline, which is 0"));
  trainer.node->finish_slots();
  REQUIRE(trainer.session.prepare());
}

TEST_CASE("checkpoint session: nobody waits for a level that there is not", "[unit][client]") {
  SavingTrainer trainer;
  for (const int level : {0, 5, 77}) {
    const Status waited = trainer.session.wait(Step{1}, static_cast<Level>(level), soon());
    REQUIRE_FALSE(waited);
    CHECK(waited.error().code() == Errc::invalid_argument);
    CHECK_THAT(waited.error().text(), Contains(fmt::format("there is no level {}", level)));
  }
}

TEST_CASE("checkpoint session: a wait for a step that was not captured ends at once, with why",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  const auto why = [&](std::uint64_t step) {
    const Status waited = trainer.session.wait(Step{step}, Level::captured, soon());
    REQUIRE(waited.error().code() == Errc::not_found);
    return waited.error().text();
  };
  REQUIRE(trainer.session.hold_captures([](Step) {}));
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.settle(Step{1}, fail(Errc::unavailable, "it was written")));
  REQUIRE(trainer.session.remove("nothing").error().code() == Errc::not_found);  // Has finished.
  CHECK_THAT(why(1), Contains("step 1 was given up") && Contains("it was written"));
  CHECK_THAT(why(2), Contains("step 2 has no save on this rank"));
  trainer.node->go_away();
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_unavailable);
  CHECK_THAT(why(3), Contains("step 3 has no save on this rank: the daemon or its Slots"));
}

TEST_CASE("checkpoint session: a wait says that all Slots were in use", "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.node->holds_slots = true;
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_no_slot);
  const Status waited = trainer.session.wait(Step{3}, Level::durable, soon());
  REQUIRE(waited.error().code() == Errc::invalid_argument);  // Without a directory.
  REQUIRE_THAT(trainer.session.wait(Step{3}, Level::captured, soon()).error().text(),
               Contains("step 3 has no save on this rank: all Slots were in use"));
}

TEST_CASE("checkpoint session: a dropped capture is reported without a further call",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  std::promise<void> copied;
  REQUIRE(trainer.session.hold_captures([&](Step) { copied.set_value(); }));
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  copied.get_future().wait();
  REQUIRE(trainer.session.settle(Step{1}, fail(Errc::unavailable, "it was written")));
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{1}});
}

TEST_CASE("checkpoint session: the first save waits for Slots, though a restore had asked for them",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.node->takes_time = true;
  REQUIRE(trainer.session.restore({}).error().code() == Errc::not_found);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.node->skipped.empty());
}

TEST_CASE("checkpoint session: a Slot that is for a restore alone does for it, and for no save",
          "[unit][client]") {
  SavingTrainer before;
  before.add("weight", 100);
  before.stamp(1);
  REQUIRE(before.saved(1) == SaveOutcome::started);
  REQUIRE(before.session.guard({}));

  Options options;
  options.open_deadline = std::chrono::milliseconds(0);  // The first save does not wait either.
  options.restore_deadline = std::chrono::milliseconds(0);
  SavingTrainer trainer(before.node, options);
  trainer.node->makes_first = true;
  trainer.add("weight", 100);
  REQUIRE(trainer.session.restore({})->step == Step{1});
  REQUIRE(trainer.contents() == before.contents());
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_unavailable);
  REQUIRE_THAT(trainer.session.stats().last_error, Contains("make Slots"));
  trainer.node->finish_slots();
  REQUIRE(trainer.saved(3) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: the first save waits for a Slot, though training has begun before",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.node->slot_count = 1;
  trainer.node->holds_slots = true;
  REQUIRE(trainer.session.start_fresh());
  trainer.add("weight", 100);  // Its Slots are made when it is saved.
  trainer.node->grants_late = true;
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_no_slot);  // Later ones never wait.
}

TEST_CASE("checkpoint session: a save that may wait for a Slot takes the next free one",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.node->slot_count = 1;
  trainer.node->holds_slots = true;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_no_slot);
  const auto now = std::chrono::steady_clock::now();
  REQUIRE(*trainer.session.save(Step{3}, {}, Due::always, now) == SaveOutcome::skipped_no_slot);
  std::thread engine([&] { trainer.node->free_slot(0); });
  const auto last = trainer.session.save(Step{4}, {}, Due::always, soon());
  engine.join();
  REQUIRE(last);
  REQUIRE(*last == SaveOutcome::started);
}

TEST_CASE("checkpoint session: a save that may wait for a Slot waits while Slots are made",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  trainer.add("more", 3 * chunk);
  trainer.node->is_slow = true;
  REQUIRE(trainer.saved(2) == SaveOutcome::skipped_unavailable);
  std::thread engine([&] { trainer.node->finish_slots(); });
  const auto last = trainer.session.save(Step{3}, {}, Due::always, soon());
  engine.join();
  REQUIRE(last);
  REQUIRE(*last == SaveOutcome::started);
}

TEST_CASE("checkpoint session: a restore leaves the room that was asked for before",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.add("of the optimizer to come", 100'000);
  trainer.node->is_slow = true;
  REQUIRE(trainer.session.prepare_in_background());
  REQUIRE(trainer.session.remove("of the optimizer to come"));
  const ChooseTargets none = [](Step, std::span<const StoredTensor>) {
    return std::vector<NamedTensor>();
  };
  REQUIRE(trainer.session.restore({}, Choice{none}).error().code() == Errc::not_found);
  REQUIRE(trainer.node->layouts.size() == 1);
  trainer.node->finish_slots();
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.node->layouts.size() == 2);
}

TEST_CASE("checkpoint session: before a restore the engine knows the tensors as they are now",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  TensorRef other = trainer.tensor("weight");
  other.piece = Piece{{200}, {100}, std::nullopt, {}};
  REQUIRE(trainer.session.remove("weight"));
  REQUIRE(trainer.session.add("weight", other));
  (void)trainer.session.restore({});
  REQUIRE(trainer.node->layouts.size() == 2);
  CHECK(trainer.node->layouts.back().tensors.at(0).piece == other.piece);
}

TEST_CASE("checkpoint session: save and prepare report too small a budget, and try again",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.node->slots_error.emplace(Errc::exhausted, "needs 212 GiB, may use 190");
  const Status prepared = trainer.session.prepare();
  REQUIRE_FALSE(prepared);
  REQUIRE(prepared.error().code() == Errc::exhausted);
  const auto saved = trainer.save(1);
  REQUIRE_FALSE(saved);
  REQUIRE(saved.error().code() == Errc::exhausted);
  REQUIRE_THAT(saved.error().text(), Contains("save step 1") && Contains("212 GiB"));
  REQUIRE(trainer.session.stats().failed == 1);
  REQUIRE_THAT(trainer.session.stats().last_error, Contains("212 GiB"));
  REQUIRE(trainer.node->skipped.empty());  // It was not begun, and may come again.
  const std::size_t asked = trainer.node->layouts.size();
  for (std::uint64_t step = 2; step < 10; ++step) {  // The reason stays, and is not asked for again
    REQUIRE(trainer.save(step).error().code() == Errc::exhausted);  // at each step.
  }
  REQUIRE(trainer.node->layouts.size() == asked);
  trainer.node->slots_error.reset();
  trainer.node->is_slow = true;
  REQUIRE(trainer.save(10).error().code() == Errc::exhausted);  // Not known to be better yet.
  trainer.node->finish_slots();
  REQUIRE(trainer.saved(11) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: steps must grow, and nothing is lost when one does not",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.session.save(Step{5}, {}, Due::by_policy).value() == SaveOutcome::started);
  for (const std::uint64_t step : {5u, 4u, 0u}) {
    const auto saved = trainer.save(step);
    REQUIRE_FALSE(saved);
    REQUIRE(saved.error().code() == Errc::invalid_argument);
    REQUIRE_THAT(saved.error().text(), Contains("step 5 came before"));
  }
  const auto largest = trainer.save(UINT64_MAX);  // No step could come after it.
  REQUIRE_FALSE(largest);
  REQUIRE_THAT(largest.error().text(), Contains("the largest is 9223372036854775807"));
  REQUIRE(trainer.saved(6) == SaveOutcome::started);
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 2);
  REQUIRE(trainer.node->skipped.empty());
  REQUIRE(trainer.session.stats().failed == 4);
}

TEST_CASE("checkpoint session: numbers that begin again are refused by that reason, skipped or not",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  trainer.node->holds_slots = true;
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_no_slot);
  trainer.node->free_slot(0);
  REQUIRE(trainer.saved(4) == SaveOutcome::started);
  const auto again = trainer.save(3);
  REQUIRE(again.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(again.error().text(), Contains("save step 3: step numbers must grow over the whole "
                                              "training, and step 4 came before"));
}

TEST_CASE("checkpoint session: a step that was refused may be saved when the reason is gone",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  trainer.add("more", 3 * chunk);
  trainer.node->slots_error.emplace(Errc::exhausted, "needs 212 GiB, may use 190");
  REQUIRE(trainer.save(5).error().code() == Errc::exhausted);
  REQUIRE(trainer.save(4).error().code() == Errc::invalid_argument);  // Yet no step goes back.
  trainer.node->slots_error.reset();
  trainer.remove("more");
  REQUIRE(trainer.saved(5) == SaveOutcome::started);
  REQUIRE_THAT(trainer.save(5).error().text(), Contains("step 5 came before"));
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->skipped.empty());
  REQUIRE(trainer.node->taken == std::vector<Step>{Step{1}, Step{5}});
}

TEST_CASE("checkpoint session: a step that other ranks may wait for is given up when it is refused",
          "[unit][client]") {
  Options options;
  options.world_size = 2;
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  trainer.node->slots_error.emplace(Errc::exhausted, "needs 212 GiB, may use 190");
  REQUIRE_FALSE(trainer.save(1));  // Nobody trains before all begin.
  REQUIRE(trainer.node->skipped.empty());
  trainer.node->slots_error.reset();
  REQUIRE(trainer.session.prepare());
  REQUIRE(trainer.session.start_fresh());
  REQUIRE(trainer.saved(1) == SaveOutcome::started);

  trainer.add("more", 3 * chunk);
  trainer.node->slots_error.emplace(Errc::exhausted, "needs 212 GiB, may use 190");
  REQUIRE_FALSE(trainer.save(5));
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{5}});
  const Status waited = trainer.session.wait(Step{5}, Level::committed, soon());
  REQUIRE(waited.error().code() == Errc::not_found);
  REQUIRE_THAT(waited.error().text(), Contains("its save was refused"));
  trainer.node->slots_error.reset();
  trainer.remove("more");
  const auto again = trainer.save(5);
  REQUIRE_FALSE(again);
  REQUIRE(again.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(again.error().text(), Contains("refused before and given up for all ranks"));
  REQUIRE(trainer.saved(6) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: after a restore an older step may be saved again",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  for (std::uint64_t step = 1; step <= 3; ++step) REQUIRE(trainer.save(step));
  REQUIRE(trainer.session.guard({}));
  REQUIRE(trainer.session.restore({.step = Step{1}})->step == Step{1});
  REQUIRE_FALSE(trainer.save(1));
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.session.restored_ok(Step{1}));
  REQUIRE(trainer.node->told_restored == std::vector<Step>{Step{1}});
}

TEST_CASE("checkpoint session: only the step that was restored last is reported as good",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  const auto refusal = [&](std::uint64_t step) {
    const Status told = trainer.session.restored_ok(Step{step});
    if (told) return std::string();
    REQUIRE(told.error().code() == Errc::invalid_argument);
    return told.error().text();
  };
  for (std::uint64_t step = 1; step <= 3; ++step) REQUIRE(trainer.save(step));
  REQUIRE(trainer.session.guard({}));
  CHECK(refusal(3) == "restored_ok step 3: this session restored nothing");
  REQUIRE(trainer.session.restore({.step = Step{3}}));
  REQUIRE(trainer.session.restore({.step = Step{1}}));
  CHECK(refusal(3) == "restored_ok step 3: this session restored step 1");
  REQUIRE(trainer.node->told_restored.empty());
  CHECK(refusal(1).empty());
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  CHECK(refusal(2) == "restored_ok step 2: this session restored step 1");
  CHECK(refusal(1).empty());
  // It goes on where it was.
  REQUIRE(trainer.session.restore({.step = Step{9}}).error().code() == Errc::not_found);
  CHECK(refusal(1).empty());
  REQUIRE(trainer.node->told_restored == std::vector<Step>(3, Step{1}));

  trainer.remove("weight");
  trainer.add("weight", 101);
  REQUIRE(trainer.session.restore({.step = Step{3}}).error().code() == Errc::invalid_argument);
  REQUIRE(trainer.session.start_fresh());
  CHECK(refusal(1) == "restored_ok step 1: this session restored nothing");
}

TEST_CASE("checkpoint session: the policy and the agreement decide what is due", "[unit][client]") {
  Options options;
  options.save_mem_interval = {10, {}};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto outcome = [&](std::uint64_t step) {
    return trainer.session.save(Step{step}, {}, Due::by_policy).value();
  };
  REQUIRE(outcome(9) == SaveOutcome::not_due);
  REQUIRE(outcome(10) == SaveOutcome::started);
  REQUIRE(outcome(11) == SaveOutcome::not_due);
  REQUIRE(trainer.saved(11) == SaveOutcome::started);  // Asked for, though not due.
  trainer.node->announce(Step{40});
  REQUIRE(outcome(20) == SaveOutcome::skipped_by_agreement);
  REQUIRE(outcome(40) == SaveOutcome::started);
  // A rank that learned of it too late has captured 20: only who tells that it did not ends that.
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{20}});
  REQUIRE(trainer.session.stats().skipped_by_agreement == 1);
}

TEST_CASE("checkpoint session: with a time interval the coordinator's next step is due",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {0, std::chrono::minutes(15)};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto outcome = [&](std::uint64_t step) {
    return trainer.session.save(Step{step}, {}, Due::by_policy).value();
  };
  REQUIRE(outcome(1) == SaveOutcome::started);  // Before anything is announced: the first one.
  for (std::uint64_t step = 2; step < 5; ++step) REQUIRE(outcome(step) == SaveOutcome::not_due);
  trainer.node->announce(Step{7});
  for (std::uint64_t step = 5; step < 7; ++step) REQUIRE(outcome(step) == SaveOutcome::not_due);
  REQUIRE(outcome(7) == SaveOutcome::started);
  for (std::uint64_t step = 8; step < 20; ++step) REQUIRE(outcome(step) == SaveOutcome::not_due);
  trainer.node->announce(Step{20});
  REQUIRE(outcome(21) == SaveOutcome::started);  // Learned of it too late: as soon as possible.
  // The coordinator knows how far we are.
  REQUIRE_FALSE(trainer.node->skipped.empty());
  REQUIRE(trainer.node->skipped.front() == Step{2});  // Step 1 was reported by its capture.
  REQUIRE(trainer.session.stats().skipped_by_agreement == 0);

  REQUIRE(trainer.session.restore({.step = Step{7}}));
  REQUIRE(outcome(8) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: whether a step is due can be asked before the state is collected",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {0, std::chrono::minutes(15)};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto is_due = [&](std::uint64_t step) {
    return trainer.session.is_due(Step{step}).value();
  };
  REQUIRE(is_due(1));
  REQUIRE(trainer.node->skipped.empty());  // A step that is due is not passed.
  REQUIRE(trainer.session.save(Step{1}, {}, Due::by_policy).value() == SaveOutcome::started);
  REQUIRE_FALSE(is_due(5));
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{4}});  // As the save itself tells it.
  trainer.node->announce(Step{7});
  REQUIRE_FALSE(is_due(6));
  REQUIRE(is_due(7));
  REQUIRE(trainer.session.save(Step{7}, {}, Due::by_policy).value() == SaveOutcome::started);
  // The save itself shall refuse.
  REQUIRE(is_due(3));
  REQUIRE_FALSE(trainer.session.save(Step{3}, {}, Due::by_policy));
  REQUIRE(trainer.session.save(Step{8}, {}, Due::always).value() == SaveOutcome::started);
  REQUIRE(trainer.session.close(deadline_after(std::chrono::seconds(1))));
  REQUIRE(trainer.session.is_due(Step{9}).error().code() == Errc::invalid_argument);
}

TEST_CASE("checkpoint session: by time, a capture that did not start is tried at the next step",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {0, std::chrono::minutes(15)};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto outcome = [&](std::uint64_t step) {
    return trainer.session.save(Step{step}, {}, Due::by_policy).value();
  };
  trainer.node->slot_count = 1;
  trainer.node->holds_slots = true;
  REQUIRE(outcome(1) == SaveOutcome::started);
  trainer.node->announce(Step{2});
  REQUIRE(outcome(2) == SaveOutcome::skipped_no_slot);
  trainer.node->free_slot(0);
  REQUIRE(outcome(3) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: by time, a step that was captured is not told as passed",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = Interval{0, std::chrono::minutes(1)};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  REQUIRE(trainer.session.start_fresh());
  trainer.node->announce(Step{3});
  REQUIRE(trainer.session.save(Step{3}, {}, Due::by_policy).value() == SaveOutcome::started);
  REQUIRE(trainer.session.save(Step{4}, {}, Due::by_policy).value() == SaveOutcome::not_due);
  CHECK(trainer.node->skipped.empty());  // A wait for step 3 would fail.
  REQUIRE(trainer.session.save(Step{5}, {}, Due::by_policy).value() == SaveOutcome::not_due);
  CHECK(trainer.node->skipped == std::vector<Step>{Step{4}});
}

TEST_CASE("checkpoint session: by time, a step that was not due may be saved all the same",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {0, std::chrono::minutes(15)};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto outcome = [&](std::uint64_t step) {
    return trainer.session.save(Step{step}, {}, Due::by_policy).value();
  };
  REQUIRE(outcome(1) == SaveOutcome::started);
  REQUIRE(outcome(5) == SaveOutcome::not_due);
  REQUIRE(trainer.node->skipped == std::vector<Step>{Step{4}});  // No engine accepts it.
  REQUIRE(trainer.save(5));
}

TEST_CASE("checkpoint session: a session that did not restore starts fresh, once",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.save(1));
  REQUIRE(trainer.save(2));
  REQUIRE(trainer.node->fresh_starts == 1);
  SavingTrainer next(trainer.node);
  next.add("weight", 100);
  REQUIRE(next.session.restore({}));
  REQUIRE(next.save(3));
  REQUIRE(trainer.node->fresh_starts == 1);
}

TEST_CASE("checkpoint session: a session that trains begins anew, with any step",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.save(7));
  REQUIRE(trainer.session.start_fresh());
  CHECK(trainer.node->fresh_starts == 2);
  REQUIRE(trainer.session.start_fresh());  // Nothing was saved since.
  CHECK(trainer.node->fresh_starts == 2);
  const auto timeline = trainer.node->shards.back().record->id.at.timeline;
  REQUIRE(trainer.save(3).value() == SaveOutcome::started);
  REQUIRE(trainer.session.wait(Step{3}, Level::captured, soon()));
  CHECK(trainer.node->shards.back().record->id.at == format::StepId{timeline + 1, Step{3}});
  SECTION("and once more") {
    REQUIRE(trainer.session.start_fresh());
    CHECK(trainer.node->fresh_starts == 3);
  }
}

TEST_CASE("checkpoint session: a session that did not restore replaces no step that is there",
          "[unit][client]") {
  SavingTrainer before;
  before.add("weight", 100);
  REQUIRE(before.save(7));
  REQUIRE(before.session.close(soon()));
  SavingTrainer trainer(before.node);
  trainer.add("weight", 100);
  for (const std::uint64_t step : {1, 2, 3}) {
    const auto saved = trainer.save(step);
    REQUIRE_FALSE(saved);
    CHECK(saved.error().code() == Errc::invalid_argument);
    CHECK_THAT(saved.error().text(), Contains("the job has a step"));
  }
  CHECK(trainer.session.stats().failed == 3);
  CHECK(before.node->fresh_starts == 2);  // The later saves do not ask, nor wait for an answer.
  CHECK(before.node->shards.size() == 1);
  SECTION("until it is restored") {
    REQUIRE(trainer.session.restore({}));
    CHECK(trainer.saved(8) == SaveOutcome::started);
  }
  SECTION("until told") {
    REQUIRE(trainer.session.start_fresh());
    CHECK(trainer.saved(1) == SaveOutcome::started);  // Though 3 was refused.
  }
}

TEST_CASE("checkpoint session: after a restore that failed the session begins again",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.save(1));
  REQUIRE_FALSE(trainer.session.restore({.step = Step{5}}));
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.node->fresh_starts == 2);
}

TEST_CASE("checkpoint session: after a restore that was refused nothing is saved until told",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  {
    SavingTrainer before(node);
    before.add("weight", 100);
    REQUIRE(before.save(7));
    REQUIRE(before.session.close(soon()));
  }
  SavingTrainer trainer(node);
  trainer.add("weight", 101);
  REQUIRE(trainer.session.restore({}).error().code() == Errc::invalid_argument);
  const auto saved = trainer.save(8);
  REQUIRE_FALSE(saved);
  REQUIRE(saved.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(saved.error().text(),
               Contains("save step 8") && Contains("start_fresh") && Contains("U8 [101] here"));
  REQUIRE(node->shards.size() == 1);
  REQUIRE(trainer.session.stats().failed == 1);
  SECTION("not_found does not make it good") {
    node->bad_copies.clear();
    REQUIRE(trainer.session.restore({.step = Step{3}}).error().code() == Errc::not_found);
    REQUIRE_FALSE(trainer.save(9));
    node->shards.clear();
    REQUIRE(trainer.session.restore({}).error().code() == Errc::not_found);
    REQUIRE(trainer.saved(9 + 1) == SaveOutcome::started);  // There is nothing to be lost.
  }
  SECTION("a fresh start is a word for it") {
    REQUIRE(trainer.session.start_fresh());
    REQUIRE(trainer.saved(8) == SaveOutcome::started);  // The step that was refused.
  }
  SECTION("another restore may succeed") {
    trainer.remove("weight");
    trainer.add("weight", 100);
    REQUIRE(trainer.session.restore({}));
    REQUIRE(trainer.saved(9) == SaveOutcome::started);
  }
}

TEST_CASE("checkpoint session: a named step that is not there does not begin anew over the others",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  {
    SavingTrainer before(node);
    before.add("weight", 100);
    REQUIRE(before.save(7));
    REQUIRE(before.session.close(soon()));
  }
  SavingTrainer trainer(node);
  trainer.add("weight", 100);
  REQUIRE(trainer.session.restore({.step = Step{5}}).error().code() == Errc::not_found);
  const auto saved = trainer.save(6);
  REQUIRE_FALSE(saved);
  REQUIRE(saved.error().code() == Errc::invalid_argument);  // Not the restore's, which is harmless.
  REQUIRE_THAT(saved.error().text(), Contains("save step 6") && Contains("start_fresh"));
  REQUIRE(node->fresh_starts == 1);
  SECTION("until told") {
    REQUIRE(trainer.session.start_fresh());
  }
  SECTION("until one of them is restored") {
    REQUIRE(trainer.session.restore({.step = Step{7}}));
    REQUIRE(trainer.session.restore({.step = Step{5}}).error().code() ==
            Errc::not_found);  // It goes on.
  }
  REQUIRE(trainer.saved(8) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: tensors that a restore has overwritten are no beginning",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  SavingTrainer trainer(node);
  trainer.add("weight", 100);
  REQUIRE(trainer.save(1));
  REQUIRE(trainer.session.guard({}));
  REQUIRE(trainer.session.prepare());  // The capture has ended.
  node->dies_after_copying = true;
  const auto restored = trainer.session.restore({});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::unavailable);  // Not "train from the beginning".
  REQUIRE_THAT(restored.error().text(),
               Contains("do not train on with them") && Contains("restore again"));
  REQUIRE_FALSE(trainer.save(2));
  REQUIRE(trainer.session.restore({}).error().code() == Errc::not_found);
  REQUIRE(trainer.saved(3) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: a fresh start has its Slots, though nothing was restored or saved",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.session.start_fresh());
  REQUIRE(trainer.node->layouts.size() == 1);
  REQUIRE(trainer.node->fresh_starts == 1);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.node->fresh_starts == 1);
}

TEST_CASE("checkpoint session: nothing to restore is not_found, and training begins",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  const auto restored = trainer.session.restore({});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::not_found);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
}

TEST_CASE("checkpoint session: a flipped bit never reaches a tensor", "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 3 * chunk);
  trainer.stamp(1);
  const auto first = trainer.contents();
  REQUIRE(trainer.save(1));
  REQUIRE(trainer.session.guard({}));
  trainer.stamp(2);
  REQUIRE(trainer.save(2));
  REQUIRE(trainer.session.guard({}));
  REQUIRE(trainer.session.prepare());  // The capture has ended.
  flip_bit(trainer.node->shards[1], 2 * chunk);
  SECTION("another copy is taken") {
    REQUIRE(trainer.session.restore({})->step == Step{1});
    REQUIRE(trainer.contents() == first);
  }
  SECTION("without one it is corruption, told with what must not be done") {
    const auto restored = trainer.session.restore({.step = Step{2}});
    REQUIRE_FALSE(restored);
    REQUIRE(restored.error().code() == Errc::corruption);
    REQUIRE_THAT(restored.error().text(), Contains("do not train on with them"));
  }
  REQUIRE(trainer.node->bad_copies == std::vector<Step>{Step{2}});
}

TEST_CASE("checkpoint session: another model's step is refused with both shapes",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  {
    SavingTrainer trainer(node);
    trainer.add("weight", 100);
    REQUIRE(trainer.save(1));
  }
  SavingTrainer trainer(node);
  trainer.add("weight", 101);
  trainer.stamp(5);
  const auto before = trainer.contents();
  const auto restored = trainer.session.restore({});
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(restored.error().text(),
               Contains("\"weight\"") && Contains("U8 [101] here") && Contains("U8 [100] there"));
  REQUIRE(trainer.contents() == before);
  // The save before is still there for the right model.
  REQUIRE(node->shards.size() == 1);
}

TEST_CASE("checkpoint session: checksums can be left to the engine", "[unit][client]") {
  Options options;
  options.checksum_in_copy = false;
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 3 * chunk);
  trainer.stamp(1);
  const auto expected = trainer.contents();
  REQUIRE(trainer.save(1));
  REQUIRE(trainer.session.guard({}));
  trainer.stamp(2);
  REQUIRE(trainer.session.restore({}));
  REQUIRE(trainer.contents() == expected);
}

namespace {
std::vector<std::string> logged;
}

TEST_CASE("checkpoint session: rank 0 writes one line per save, with what it cost",
          "[unit][client]") {
  Options options;
  options.rank = GENERATE(0u, 1u);
  options.world_size = 2;
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  logged.clear();
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  trainer.add("weight", 100);
  const bool is_saved = trainer.save(900).has_value() && trainer.session.close(soon()).has_value();
  Log::set_sink(nullptr);
  REQUIRE(is_saved);
  REQUIRE(logged.size() == (options.rank == 0 ? 1 : 0));
  if (logged.empty()) return;
  REQUIRE_THAT(logged[0], Contains("job=unit step 900 captured in ") && Contains(" ms, held ") &&
                              Contains("8.0 KiB"));
}

TEST_CASE("checkpoint session: closing tells that the newest step was lost", "[unit][client]") {
  Options options;
  options.dir = GENERATE("", "/checkpoints");
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  REQUIRE(trainer.save(5));
  REQUIRE(trainer.session.prepare());  // The capture has ended.
  trainer.node->go_away();
  trainer.node->come_back();
  const Status closed = trainer.session.close(soon());
  REQUIRE(closed.has_value() == options.dir.empty());  // Memory alone is given up anyway.
  if (closed) return;
  REQUIRE(closed.error().code() == Errc::not_found);
  REQUIRE_THAT(closed.error().text(), Contains("step 5"));
  REQUIRE_THAT(closed.error().text(), !Contains("on storage"));  // Nothing is known of it.
}

TEST_CASE("checkpoint session: closing promises no step that died with a daemon",
          "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  trainer.node->holds_slots = true;
  trainer.node->reached = Level::durable;
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  REQUIRE(trainer.session.prepare());  // The capture has ended.
  trainer.node->reached = Level::captured;
  REQUIRE(trainer.saved(2) == SaveOutcome::started);
  REQUIRE(trainer.session.prepare());
  REQUIRE(trainer.session.stats().captured == Step{2});
  REQUIRE(trainer.saved(3) == SaveOutcome::skipped_no_slot);
  trainer.node->go_away();
  trainer.node->come_back();
  test::CapturedLog log(LogLevel::warning);
  const Status closed = trainer.session.close(soon());
  REQUIRE_FALSE(closed);
  REQUIRE_THAT(closed.error().text(), Contains("step 2 was only in the memory of a daemon") &&
                                          Contains("; the newest step on storage is 1"));
  REQUIRE(log.has("the newest step known to be saved is 1, on storage; 2 steps that were due"));
}

// Each line behind its level.
void log_with_levels() {
  logged.clear();
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel level, std::string_view text) {
    logged.push_back((level == LogLevel::warning ? "warning " : "info ") + std::string(text));
  });
}

TEST_CASE("checkpoint session: rank 0 tells once that a job begins anew, and why",
          "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  options.world_size = 2;
  std::string line;
  int restores = 1;
  std::optional<Step> wanted;
  bool is_fresh = false;
  bool is_warning = false;
  auto node = std::make_shared<FakeNode>();
  SECTION("nothing was ever there") {
    node->nothing_reason = "there is no checkpoint yet";
    line =
        "job unit begins anew: there is no checkpoint in memory or in /checkpoints (option dir: "
        "code)";
    SECTION("asked once") {}
    SECTION("the directory was made just now") {
      node->nothing_reason += "; /checkpoints did not exist";
      line += "; /checkpoints did not exist";
    }
    SECTION("the daemon had the job in another directory") {
      node->nothing_reason += "; this daemon had the job before in /scratch";
      line += "; this daemon had the job before in /scratch";
      is_warning = true;
    }
    SECTION("asked twice") {
      restores = 2;
    }
    SECTION("another rank") {
      options.rank = 1;
      line.clear();
    }
  }
  SECTION("without a directory") {
    options.dir.clear();
    line = "job unit begins anew: there is no checkpoint in memory";
  }
  SECTION("a step was seen") {
    node->nothing_reason = "no step can be restored; newest seen: timeline 1 step 40, rejected: x";
    line = "job unit begins anew; restore: " + node->nothing_reason +
           "; if /checkpoints has it whole, a restore from its path takes it";
    is_warning = true;
  }
  SECTION("a named step is no beginning") {
    wanted = Step{7};
  }
  SECTION("it was begun by a choice") {
    is_fresh = true;
  }
  SavingTrainer trainer(node, options);
  trainer.add("weight", 100);
  log_with_levels();
  const bool has_begun = !is_fresh || trainer.session.start_fresh().has_value();
  std::vector<Errc> codes;
  for (int i = 0; i < restores; ++i) {
    RestoreRequest request;
    request.step = wanted;
    const auto restored = trainer.session.restore(std::move(request));
    codes.push_back(restored ? Errc{} : restored.error().code());
  }
  Log::set_sink(nullptr);
  REQUIRE(has_begun);
  REQUIRE(codes == std::vector<Errc>(static_cast<std::size_t>(restores), Errc::not_found));
  REQUIRE(logged.size() == (line.empty() ? 0 : 1));
  if (line.empty()) return;
  CHECK_THAT(logged[0], Catch::StartsWith(is_warning ? "warning" : "info"));
  CHECK_THAT(logged[0], Catch::EndsWith(line));
}

TEST_CASE("checkpoint session: closing tells that nothing was ever saved", "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  SECTION("since there was no room") {
    trainer.node->slots_error.emplace(Errc::exhausted, "3 Slots need 300 B, may use 1 B");
    for (const std::uint64_t step : {1u, 2u}) REQUIRE_FALSE(trainer.save(step));
    const Status closed = trainer.session.close(soon());
    REQUIRE_FALSE(closed);
    REQUIRE(closed.error().code() == Errc::not_found);
    REQUIRE_THAT(closed.error().text(),
                 Contains("2 steps were due, none was captured") && Contains("may use 1 B"));
  }
  SECTION("since nothing was due") {
    REQUIRE(trainer.session.close(soon()));
  }
}

TEST_CASE("checkpoint session: closing tells that no step was captured by all ranks",
          "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  options.world_size = 2;
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  trainer.node->reached = GENERATE(Level::captured, Level::committed);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  const Status closed = trainer.session.close(soon());
  REQUIRE(closed.has_value() == (trainer.node->reached == Level::committed));
  if (closed) return;
  REQUIRE(closed.error().code() == Errc::not_found);
  REQUIRE_THAT(closed.error().text(), Contains("no step was captured by all 2 ranks"));
}

TEST_CASE("checkpoint session: who restores and does not save leaves the steps in memory",
          "[unit][client]") {
  const auto node = std::make_shared<FakeNode>();
  SavingTrainer trained(node);
  trained.add("weight", 100);
  REQUIRE(trained.saved(1) == SaveOutcome::started);
  REQUIRE(trained.session.prepare());
  Options options;
  options.dir = GENERATE("", "/checkpoints");
  SavingTrainer looks(node, options);
  looks.add("weight", 100);
  REQUIRE(looks.session.restore({}));
  const bool saves = GENERATE(true, false);
  if (saves) REQUIRE(looks.saved(2) == SaveOutcome::started);
  REQUIRE(looks.session.close(soon()));
  const bool is_closed = saves || !options.dir.empty();
  REQUIRE(node->closes == (is_closed ? 1 : 0));
  // A close confirms the step, too: it is not suspect.
  if (!is_closed) REQUIRE(node->told_restored == std::vector{Step{1}});
}

TEST_CASE("checkpoint session: closing names the newest step that is saved, and how many are not",
          "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  trainer.node->holds_slots = true;
  for (const std::uint64_t step : {1u, 2u}) REQUIRE(trainer.saved(step) == SaveOutcome::started);
  std::uint64_t last = 9;
  std::string told = "7 steps that were due after it, the last of them 9, are not";
  SECTION("closed as asked for") {}
  SECTION("one step alone") {
    last = 3;
    told = "step 3, which was due after it, is not";
  }
  SECTION("or not, since the daemon hangs") {
    trainer.node->closing = fail(Errc::unavailable, "close: the deadline passed");
  }
  for (std::uint64_t step = 3; step <= last; ++step)
    REQUIRE(trainer.saved(step) == SaveOutcome::skipped_no_slot);
  logged.clear();
  Log::set_level(LogLevel::warning);
  Log::set_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  (void)trainer.session.close(soon());
  Log::set_sink(nullptr);
  REQUIRE(logged.size() == 1);
  REQUIRE_THAT(logged[0], Contains("the newest step known to be saved is 2, in memory; " + told));
}

TEST_CASE("checkpoint session: a step whose state could not be collected is a save that failed",
          "[unit][client]") {
  Options options;
  options.dir = "/checkpoints";
  options.world_size = GENERATE(1, 2);
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  if (options.world_size == 2) trainer.node->reached = Level::committed;
  const auto give_up = [&](std::uint64_t step) {
    REQUIRE(trainer.session.give_up(Step{step}, "state_dict() failed"));
  };
  SECTION("if it is each one, closing fails") {
    for (const std::uint64_t step : {1u, 2u, 3u}) give_up(step);
    REQUIRE(trainer.session.stats().failed == 3);
    REQUIRE(trainer.node->passed.empty());  // Nothing has begun that a step could be lost of.
    const Status closed = trainer.session.close(soon());
    REQUIRE(closed.error().code() == Errc::not_found);
    REQUIRE_THAT(closed.error().text(),
                 Contains("3 steps were due, none was captured: state_dict() failed"));
  }
  SECTION("later ones are counted at the end, as lost, and for who waits") {
    REQUIRE(trainer.saved(1) == SaveOutcome::started);
    for (const std::uint64_t step : {2u, 3u}) give_up(step);
    if (options.world_size == 2) {  // Another rank may have captured it.
      REQUIRE(trainer.node->skipped == std::vector<Step>{Step{2}, Step{3}});
    } else {
      REQUIRE(trainer.node->passed.front() == Step{2});
    }
    const Status waited = trainer.session.wait(Step{3}, Level::captured, soon());
    REQUIRE(waited.error().code() == Errc::not_found);
    REQUIRE_THAT(waited.error().text(), Contains("its save failed: state_dict() failed"));
    test::CapturedLog log(LogLevel::warning);
    REQUIRE(trainer.session.close(soon()));
    REQUIRE(log.has(
        "the newest step known to be saved is 1, in memory; 2 steps that were due after it"));
  }
  SECTION("after a restore earlier ones count no more") {
    REQUIRE(trainer.saved(1) == SaveOutcome::started);
    give_up(2);
    REQUIRE(trainer.session.restore({}));
    test::CapturedLog log(LogLevel::warning);
    REQUIRE(trainer.session.close(soon()));
    REQUIRE_FALSE(log.has("close:"));
  }
  SECTION("one that the save would refuse anyway is counted, and no more") {
    REQUIRE(trainer.saved(5) == SaveOutcome::started);
    give_up(4);
    REQUIRE(trainer.session.stats().failed == 1);
    REQUIRE(trainer.saved(6) == SaveOutcome::started);
    test::CapturedLog log(LogLevel::warning);
    REQUIRE(trainer.session.close(soon()));
    REQUIRE_FALSE(log.has("the newest step known to be saved"));
  }
  SECTION("it may come again, if nobody waits for it") {
    REQUIRE(trainer.saved(1) == SaveOutcome::started);
    give_up(2);
    REQUIRE(trainer.save(2).has_value() == (options.world_size == 1));
    REQUIRE(trainer.session.close(soon()));
  }
}

TEST_CASE("session: the daemon has to answer a close before the trainer's own deadline",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 100);
  REQUIRE(trainer.saved(1) == SaveOutcome::started);
  // So it may say why, and not only that the time is over.
  REQUIRE(trainer.session.close(soon()));
  CHECK(trainer.node->close_deadline > std::chrono::seconds(20));
  CHECK(trainer.node->close_deadline <= std::chrono::seconds(29));
}

TEST_CASE("checkpoint session: closing tells what is left, once, and ends everything",
          "[unit][client]") {
  SavingTrainer trainer;
  trainer.add("weight", 5 * chunk);
  REQUIRE(trainer.save(1));
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->shards.size() == 1);
  REQUIRE(trainer.session.close(soon()));
  REQUIRE(trainer.node->closes == 1);
  const auto saved = trainer.save(2);
  REQUIRE_FALSE(saved);
  REQUIRE(saved.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(saved.error().text(), Contains("closed"));
  REQUIRE_FALSE(trainer.session.restore({}));
  REQUIRE(trainer.session.stats().captured == Step{1});
}

TEST_CASE("checkpoint session: a death in the middle of a capture leaves nothing half done",
          "[unit][client]") {
  auto node = std::make_shared<FakeNode>();
  for (int round = 1; round <= 20; ++round) {
    SavingTrainer trainer(node);
    trainer.add("weight", 40 * chunk);
    trainer.stamp(static_cast<std::uint64_t>(round));
    REQUIRE(trainer.session.start_fresh());
    REQUIRE(trainer.save(static_cast<std::uint64_t>(round)));
  }
  // Each capture was completed before its memory went.
  REQUIRE(node->shards.size() == 20);
  for (const auto& shard : node->shards) require_sound(shard);
}

// Saves that are not due are enough: the engine hears how fast training is long before it disturbs.
TEST_CASE("checkpoint session: step times are sent between saves, unless yield is off",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {1'000'000, {}};
  SavingTrainer told(std::make_shared<FakeNode>(), options);
  options.yield = Yield::off;
  SavingTrainer silent(std::make_shared<FakeNode>(), options);
  told.add("weight", MiB);
  const Deadline deadline = soon();
  for (std::uint64_t step = 1; told.node->step_times.size() < 3; ++step) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    told.stamp(step);  // The work.
    for (SavingTrainer* trainer : {&told, &silent}) {
      if (step % 2 == 0) REQUIRE(trainer->session.is_due(Step{step}).value() == false);
      if (step % 2 == 0) continue;
      const auto outcome = trainer->session.save(Step{step}, {}, Due::by_policy);
      REQUIRE(outcome.value() == SaveOutcome::not_due);
    }
  }
  for (const control::StepTime& steps : told.node->step_times) {
    REQUIRE(steps.steps > 0);
    REQUIRE(steps.time >= StepTimer::measured_min);
    REQUIRE_FALSE(steps.during_capture);
  }
  REQUIRE(silent.node->step_times.empty());
}

// So that a restore can say how many steps were lost: not each step of a fast loop is sent.
TEST_CASE("checkpoint session: the first step after a capture is reported, captured or not",
          "[unit][client]") {
  Options options;
  options.save_mem_interval = {10, {}};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto save = [&](std::uint64_t step) {
    return trainer.session.save(Step{step}, {}, Due::by_policy).value();
  };
  std::vector<Step>& passed = trainer.node->passed;
  for (std::uint64_t step = 1; step < 10; ++step) REQUIRE(save(step) == SaveOutcome::not_due);
  REQUIRE(passed.front() == Step{1});
  REQUIRE(save(10) == SaveOutcome::started);
  SECTION("by a save") {
    REQUIRE(save(11) == SaveOutcome::not_due);
  }
  SECTION("by a question") {
    REQUIRE_FALSE(trainer.session.is_due(Step{11}).value());
  }
  REQUIRE(passed.back() == Step{11});

  trainer.node->newest_seen = Step{11};
  REQUIRE(trainer.session.restore({}).value().newest_seen == Step{11});
  passed.clear();
  REQUIRE(save(12) == SaveOutcome::not_due);
  REQUIRE(passed == std::vector{Step{12}});
}

// The trainer's thread never sends more than the engine can use.
TEST_CASE("checkpoint session: few of the steps of a fast loop are reported", "[unit][client]") {
  Options options;
  options.save_mem_interval = {1'000'000, {}};
  SavingTrainer trainer(std::make_shared<FakeNode>(), options);
  trainer.add("weight", 100);
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t step = 1;
  for (; step <= 10'000; ++step) REQUIRE_FALSE(trainer.session.is_due(Step{step}).value());
  const auto took = std::chrono::steady_clock::now() - began;
  const auto reports_max = static_cast<std::size_t>(took / std::chrono::milliseconds(20)) + 1;
  REQUIRE_FALSE(trainer.node->passed.empty());
  REQUIRE(trainer.node->passed.size() <= reports_max);
}

}  // namespace ckpt::client
