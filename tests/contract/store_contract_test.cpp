// Goal:   every place for checkpoints keeps the same promises, so that a caller need not know
//         whether it saves on a disk or into a bucket.
// Method: each operation that the daemons and tools ask of storage, on disks through the ring, the
//         pool and in memory, and in buckets of servers in memory and of a real one (as in
//         objects_contract_test.cpp). A second daemon looks at what the first one did.
#include "contract/store_under_test.hpp"
#include "storage/latest.hpp"
#include "storage/timeline_claim.hpp"

namespace ckpt::test {

namespace {

using Store = std::unique_ptr<StoreUnderTest>;

using Steps = std::vector<format::StepId>;

}  // namespace

TEST_CASE("store: a step that was published is listed, and reads back whole and by its Chunks",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  REQUIRE(store->whole_steps().empty());
  store->must_save(step_id(7));
  store->must_save(step_id(8));
  REQUIRE(store->whole_steps() == Steps{step_id(7), step_id(8)});
  CHECK(store->read(storage::latest_name) == "step-000000008\n");
  CHECK(store->attempts_left().empty());

  storage::Site site = store->site_of_second();
  const std::string directory = site.at("step-000000007");
  CHECK(store->must(storage::verify_checkpoint(site.files(), directory)).is_good());
  const auto manifest = store->must(storage::read_manifest(site, "step-000000007"));
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const MadeShard expected = make_rank(step_id(7), rank);
    const auto record = store->must(storage::read_record(site.files(), directory, manifest, rank));
    const auto place = storage::shard_place(directory, manifest->shards.at(rank));
    const auto opened = store->must(storage::ShardFiles::open(site.files(), place, record));
    REQUIRE(record->chunk_crcs.size() > 1);
    for (std::size_t index = record->chunk_crcs.size(); index-- > 0;) {
      const format::Extent chunk = record->chunk(index);
      std::vector<std::byte> found(chunk.bytes, std::byte{0xee});
      const storage::TransferHooks hooks;
      store->must(opened->read_chunk(index, found, hooks));
      CHECK(std::memcmp(found.data(), expected.bytes->data() + chunk.offset, chunk.bytes) == 0);
    }
    store->must(opened->close());
  }
}

TEST_CASE("store: files that nobody published are no step, and go when they are discarded",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  store->must_save(step_id(6));
  const auto order = store->must_write(store->site(), step_id(7));
  CHECK(store->whole_steps() == Steps{step_id(6)});
  CHECK(store->attempts_left() == std::vector{order.work_name});

  // An attempt that somebody still carries out is kept, whatever else is discarded.
  storage::StaleAttempts stale;
  stale.is_kept = [&](const std::string& name) { return name == order.work_name; };
  CHECK(store->must(storage::discard_stale(store->site_of_second(), stale)).empty());
  CHECK(store->attempts_left() == std::vector{order.work_name});

  CHECK(store->discard_all() == std::vector{order.work_name});
  CHECK(store->attempts_left().empty());
  CHECK_FALSE(store->run(storage::publish(store->site(), order)));
  CHECK(store->whole_steps() == Steps{step_id(6)});
  store->must_save(step_id(7));
  CHECK(store->whole_steps() == Steps{step_id(6), step_id(7)});
}

TEST_CASE("store: a publication that was carried out is found again",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  const auto order = store->must_write(store->site(), step_id(7));
  const auto first = store->must(storage::publish(store->site(), order));
  CHECK_FALSE(first.was_there);
  CHECK(first.name == "step-000000007");
  const auto again = store->must(storage::publish(store->site_of_second(), order));
  CHECK(again.was_there);
  CHECK(again.name == first.name);
  CHECK(store->whole_steps() == Steps{step_id(7)});
}

TEST_CASE("store: a step of a newer timeline takes the place of an older one, never the reverse",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  store->must_save(step_id(7, 1));
  const auto newer = store->must_write(store->site_of_second(), step_id(7, 2));
  store->must(storage::publish(store->site_of_second(), newer));
  REQUIRE(store->whole_steps() == Steps{step_id(7, 2)});
  const auto older = store->must_write(store->site(), step_id(7, 1));
  const auto refused = store->run(storage::publish(store->site(), older));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK(store->whole_steps() == Steps{step_id(7, 2)});
  store->discard_all();
  CHECK(store->attempts_left().empty());
  CHECK(store->whole_steps() == Steps{step_id(7, 2)});
}

TEST_CASE("store: two daemons that commit one step leave one, whole, and nothing beside it",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  const auto ours = store->must_write(store->site(), step_id(7));
  const auto theirs = store->must_write(store->site_of_second(), step_id(7));
  REQUIRE(ours.work_name != theirs.work_name);
  const auto first = store->run(storage::publish(store->site(), ours));
  const auto second = store->run(storage::publish(store->site_of_second(), theirs));
  REQUIRE(first);
  if (!second) CHECK(second.error().code() == Errc::invalid_argument);
  CHECK(store->whole_steps() == Steps{step_id(7)});
  store->discard_all();
  CHECK(store->attempts_left().empty());
  CHECK(store->whole_steps() == Steps{step_id(7)});
}

TEST_CASE("store: a step without one of its files is damaged, and no checkpoint",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  store->must_save(step_id(6));
  store->must_save(step_id(7));
  storage::Site site = store->site();
  const auto manifest = store->must(storage::read_manifest(site, "step-000000007"));
  const format::ManifestShard& shard = manifest->shards.at(1);
  const std::string directory = storage::shard_directory(site.at("step-000000007"), shard);
  const std::string file = os::join(directory, shard.files.front().name);
  store->must(site.files().remove_file(file));
  const storage::Catalog found = store->catalog();
  REQUIRE(found.checkpoints.size() == 1);
  CHECK(found.checkpoints.front().at == step_id(6));
  REQUIRE(found.rejected.size() == 1);
  CHECK(found.rejected.front().code == Errc::corruption);
  CHECK(storage::is_damage(found.rejected.front()));
  const auto record =
      store->must(storage::read_record(site.files(), site.at("step-000000007"), manifest, 1));
  std::vector<std::byte> target(record->bytes);
  const auto place = storage::shard_place(site.at("step-000000007"), shard);
  const storage::TransferHooks hooks;
  const Status read = store->run(storage::read_shard(site.files(), place, record, target, hooks));
  REQUIRE_FALSE(read);
  CHECK(read.error().code() == Errc::corruption);
}

TEST_CASE("store: only the step that is meant is removed", "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  for (const std::uint64_t step : {6, 7, 8}) store->must_save(step_id(step));
  const Status foreign = store->remove(store->site(), Step{7}, format::RunId{9, 9});
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().code() == Errc::invalid_argument);
  CHECK(store->whole_steps().size() == 3);

  REQUIRE(store->remove(store->site(), Step{7}));
  CHECK(store->whole_steps() == Steps{step_id(6), step_id(8)});
  const Status again = store->remove(store->site_of_second(), Step{7});
  REQUIRE_FALSE(again);
  CHECK(again.error().code() == Errc::not_found);
  CHECK(store->attempts_left().empty());
  store->must_save(step_id(7, 2));  // Its place is free again.
  CHECK(store->whole_steps() == Steps{step_id(6), step_id(8), step_id(7, 2)});
}

TEST_CASE("store: one of two daemons makes a record, and the other one finds it",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  auto theirs = store->run_order();
  theirs.fresh_run = format::RunId{9, 9};
  const auto marker = store->must(storage::open_run_directory(store->site_of_second(), theirs));
  CHECK(marker.run == test_run);
  const auto other_job = store->run_order("another");
  const auto refused = store->run(storage::open_run_directory(store->site_of_second(), other_job));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);

  const std::string name = ".libckpt/once";
  const auto create = [&](storage::Site site, const std::string& text) {
    const std::string aside = storage::aside_name(storage::run_marker_name, store->next_attempt());
    return store->must(storage::create_once(site, name, text, aside));
  };
  CHECK(create(store->site(), "one"));
  CHECK_FALSE(create(store->site_of_second(), "two"));
  CHECK(store->read(name) == "one");
  const std::string aside = storage::aside_name(storage::run_marker_name, store->next_attempt());
  store->must(storage::replace_file(store->site_of_second(), name, "three", aside));
  CHECK(store->read(name) == "three");
}

TEST_CASE("store: a timeline is claimed by one Start, and its history is what was stored last",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  const auto claim = [&](storage::Site site, std::uint64_t start_id) {
    storage::Claim wanted;
    wanted.timeline = 2;
    wanted.start_id = start_id;
    wanted.attempt = store->next_attempt();
    return store->must(storage::claim_timeline(site, wanted));
  };
  CHECK(claim(store->site(), 1) == storage::Claimed::now);
  CHECK(claim(store->site_of_second(), 1) == storage::Claimed::before);
  CHECK(claim(store->site_of_second(), 3) == storage::Claimed::taken);

  CHECK(store->must(storage::load_timelines(store->site(), test_run)).history.empty());
  format::Timelines timelines;
  timelines.run = test_run;
  for (const std::uint64_t timeline : {1, 2}) {
    timelines.history.emplace_back();
    timelines.history.back().timeline = timeline;
    store->must(storage::store_timelines(store->site(), timelines, store->next_attempt()));
    CHECK(store->must(storage::load_timelines(store->site_of_second(), test_run)) == timelines);
  }
  const auto foreign = store->run(storage::load_timelines(store->site(), format::RunId{9, 9}));
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().code() == Errc::invalid_argument);

  store->must(storage::discard_claims(store->site(), 2));
  CHECK(claim(store->site(), 3) == storage::Claimed::taken);
  store->must(storage::discard_claims(store->site(), 3));
  CHECK(claim(store->site(), 3) == storage::Claimed::now);
}

TEST_CASE("store: `latest` is mended when it names a step that is gone",
          "[contract][storage][bucket]") {
  const Store store = some_store();
  if (!store) return;
  store->open();
  format::Timelines timelines;  // Without them nobody knows what a restore abandoned.
  timelines.run = test_run;
  timelines.history.emplace_back();
  timelines.history.back().timeline = 1;
  store->must(storage::store_timelines(store->site(), timelines, store->next_attempt()));
  for (const std::uint64_t step : {6, 7}) store->must_save(step_id(step));
  REQUIRE(store->remove(store->site(), Step{7}));
  const auto mend = [&] {
    return store->must(storage::mend_latest(store->site_of_second(), test_run, store->catalog(),
                                            store->next_attempt()));
  };
  CHECK(mend());
  CHECK(store->read(storage::latest_name) == "step-000000006\n");
  CHECK_FALSE(mend());
}

}  // namespace ckpt::test
