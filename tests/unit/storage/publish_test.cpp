// Goal:   a step is published whole or not at all, and what cannot be published says why.
// Method: save, publish again, publish under a new timeline with and without exchange; then each
//         way in which a work directory can be wrong.
#include "storage/publish.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

using storage::parse_work_directory;

TEST_CASE_METHOD(StorageFixture, "publish: a saved step reads back byte for byte",
                 "[unit][storage]") {
  open();
  must_save(step_id(7));
  REQUIRE(whole_steps() == std::vector{step_id(7)});
  REQUIRE(disk.content("/scratch/job/latest") == "step-000000007\n");
  REQUIRE(leftovers().empty());
  const auto listed = catalog();
  REQUIRE(listed.rejected.empty());
  REQUIRE(listed.checkpoints.front().world_size == world_size);
  REQUIRE(listed.checkpoints.front().digests.size() == world_size);
  REQUIRE(listed.checkpoints.front().digests[1] ==
          format::digest_of(*make_rank(step_id(7), 1).record));
  const std::string log = disk.content("/scratch/job/.libckpt/log.jsonl");
  REQUIRE(log.find("\"operation\":\"save\",\"path\":\"step-000000007\"") != std::string::npos);
}

TEST_CASE_METHOD(StorageFixture, "publish: it is durable when it returns", "[unit][storage]") {
  open();
  must_save(step_id(7));
  disk.crash(Survival::nothing);
  REQUIRE(whole_steps() == std::vector{step_id(7)});
}

TEST_CASE_METHOD(StorageFixture, "publish: a step saved again under a new timeline replaces it",
                 "[unit][storage]") {
  const bool has_exchange = GENERATE(true, false);
  disk.set_exchange_supported(has_exchange);
  open();
  must_save(step_id(5));
  must_save(step_id(7));
  must_save(step_id(7, 2));
  REQUIRE(whole_steps() == std::vector{step_id(5), step_id(7, 2)});
  REQUIRE(leftovers().empty());
  const std::string name = has_exchange ? "step-000000007" : "step-000000007.g2";
  REQUIRE(catalog().checkpoints.back().name == name);
  REQUIRE(disk.content("/scratch/job/latest") == name + "\n");
  disk.crash(Survival::nothing);
  REQUIRE(whole_steps() == std::vector{step_id(5), step_id(7, 2)});
  must_save(step_id(7, 3));
  REQUIRE(whole_steps() == std::vector{step_id(5), step_id(7, 3)});
}

TEST_CASE_METHOD(StorageFixture, "publish: an older timeline cannot replace a newer one",
                 "[unit][storage]") {
  open();
  must_save(step_id(7, 2));
  const auto stale = try_save(step_id(7, 1));
  REQUIRE_FALSE(stale.has_value());
  REQUIRE(stale.error().code() == Errc::invalid_argument);
  REQUIRE(whole_steps() == std::vector{step_id(7, 2)});
}

TEST_CASE_METHOD(StorageFixture, "publish: an order that was carried out is found again",
                 "[unit][storage]") {
  open();
  must_save(step_id(7));
  storage::PublishOrder order = order_of_last(step_id(7));
  const auto again = run(storage::publish(site, order));
  REQUIRE(again.has_value());
  REQUIRE(again->was_there);
  REQUIRE(again->name == "step-000000007");
  order.digests[0].low ^= 1;
  REQUIRE(run(storage::publish(site, order)).error().code() == Errc::not_found);
}

TEST_CASE_METHOD(StorageFixture, "publish: one that is found again is durable when that is said",
                 "[unit][storage]") {
  open();
  // Its coordinator ends between the rename and the sync of the parent.
  bool is_renamed = false;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    is_renamed = is_renamed || (verb == "rename" && path.find("/step-") != std::string::npos);
    return is_renamed && verb == "sync_directory" ? EIO : 0;
  });
  REQUIRE_FALSE(try_save(step_id(7)).has_value());
  disk.set_hook(nullptr);
  REQUIRE(disk.exists("/scratch/job/step-000000007"));
  const auto again = run(storage::publish(site, order_of_last(step_id(7))));
  REQUIRE(again.has_value());
  REQUIRE(again->was_there);
  disk.crash(Survival::nothing);
  REQUIRE(whole_steps() == std::vector{step_id(7)});
}

TEST_CASE_METHOD(StorageFixture, "publish: a directory there that is not ours is never touched",
                 "[unit][storage]") {
  open();
  disk.put("/scratch/job/step-000000007/notes.txt", "mine");
  must_save(step_id(7));
  REQUIRE(disk.content("/scratch/job/step-000000007/notes.txt") == "mine");
  REQUIRE(catalog().checkpoints.front().name == "step-000000007.g2");
}

TEST_CASE_METHOD(StorageFixture, "publish: nothing stays aside where `latest` cannot be replaced",
                 "[unit][storage]") {
  open();
  disk.put("/scratch/job/latest/notes.txt", "mine");
  must_save(step_id(7));
  REQUIRE(leftovers().empty());
  REQUIRE(disk.content("/scratch/job/latest/notes.txt") == "mine");
}

TEST_CASE_METHOD(StorageFixture, "publish: a shard that is missing or another one is named",
                 "[unit][storage]") {
  open();
  must_save(step_id(5));
  auto work = run(storage::make_work_directory(site, step_id(7), 99));
  REQUIRE(work.has_value());
  storage::PublishOrder order;
  order.work_name = *work;
  order.job = "job";
  order.run = test_run;
  order.at = step_id(7);
  order.world_size = world_size;
  const MadeShard zero = make_rank(step_id(7), 0);
  const MadeShard one = make_rank(step_id(7), 1);
  order.digests = {format::digest_of(*zero.record), format::digest_of(*one.record)};
  const std::string path = site.at(*work);
  const storage::TransferHooks hooks;
  REQUIRE(run(storage::write_shard(files, source_of(zero), path, hooks)).has_value());
  auto missing = run(storage::publish(site, order));
  REQUIRE_FALSE(missing.has_value());
  REQUIRE(missing.error().code() == Errc::not_found);
  REQUIRE(missing.error().text().find("rank 1") != std::string::npos);
  REQUIRE(missing.error().text().find("all nodes share") != std::string::npos);

  REQUIRE(run(storage::write_shard(files, source_of(one), path, hooks)).has_value());
  SECTION("another digest than was reported") {
    order.digests[1].high ^= 1;
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::corruption);
  }
  SECTION("a file that is too short") {
    disk.resize(os::join(path, "rank-00001.safetensors"), 100);
    const auto short_file = run(storage::publish(site, order));
    REQUIRE(short_file.error().code() == Errc::corruption);
    REQUIRE(short_file.error().text().find("rank-00001.safetensors") != std::string::npos);
  }
  SECTION("a file that is too short, though the one before it is whole") {
    disk.resize(os::join(path, "rank-00001.blobs"), 10);
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::corruption);
  }
  SECTION("the part of another timeline, even where it is the one that was ordered") {
    const MadeShard other = make_rank(step_id(7, 2), 1);
    for (const char* name : {"safetensors", "blobs", "part"})
      disk.erase(os::join(path, format::member_name(1, name)));
    REQUIRE(run(storage::write_shard(files, source_of(other), path, hooks)).has_value());
    order.digests[1] = format::digest_of(*other.record);
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::corruption);
  }
  const std::string part = os::join(path, "rank-00001.part");
  SECTION("a part with a flipped bit in its front") {
    disk.flip(part, 40, 3);
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::corruption);
  }
  SECTION("a part that is cut off in its front") {
    disk.resize(part, GENERATE(as<std::uint64_t>(), 0, 7, 8, 200));
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::corruption);
  }
  SECTION("a part that is cut off behind its front, or longer") {
    disk.resize(part, disk.content(part).size() + GENERATE(as<std::uint64_t>(), -1, 1));
    const auto wrong_size = run(storage::publish(site, order));
    REQUIRE(wrong_size.error().code() == Errc::corruption);
    REQUIRE(wrong_size.error().text().find("rank-00001.part") != std::string::npos);
  }
  REQUIRE(whole_steps() == std::vector{step_id(5)});
  REQUIRE(run(storage::discard_work_directory(site, *work, "test")).has_value());
  REQUIRE(leftovers().empty());
}

TEST_CASE_METHOD(StorageFixture, "publish: memory that changed after its checksum is not written",
                 "[unit][storage]") {
  open();
  auto work = run(storage::make_work_directory(site, step_id(7), 99));
  REQUIRE(work.has_value());
  MadeShard shard = make_rank(step_id(7), 1);
  shard.bytes = std::make_shared<std::vector<std::byte>>(*shard.bytes);
  (*shard.bytes)[page_bytes + 5] ^= std::byte{4};
  const storage::TransferHooks hooks;
  const auto written = run(storage::write_shard(files, source_of(shard), site.at(*work), hooks));
  REQUIRE_FALSE(written.has_value());
  REQUIRE(written.error().code() == Errc::corruption);
  REQUIRE(written.error().text().find("rank 1 of step 7: chunk 1") != std::string::npos);
  REQUIRE_FALSE(disk.exists(os::join(site.at(*work), "rank-00001.part")));
}

TEST_CASE_METHOD(StorageFixture, "publish: an attempt that was taken away is not published",
                 "[unit][storage]") {
  open();
  auto work = run(storage::make_work_directory(site, step_id(7), 99));
  REQUIRE(work.has_value());
  storage::PublishOrder order;
  order.work_name = *work;
  order.job = "job";
  order.run = test_run;
  order.at = step_id(7);
  order.world_size = world_size;
  const storage::TransferHooks hooks;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const MadeShard shard = make_rank(step_id(7), rank);
    order.digests.push_back(format::digest_of(*shard.record));
    REQUIRE(run(storage::write_shard(files, source_of(shard), site.at(*work), hooks)).has_value());
  }
  storage::StaleAttempts stale;
  stale.timelines_below = 1;
  SECTION("only those that are over") {
    stale.names = {"." + *work};
    REQUIRE(run(storage::discard_stale(site, stale))->empty());
  }
  SECTION("and not those that are kept") {
    stale.timelines_below = 2;
    stale.is_kept = [&](const std::string& name) { return name == *work; };
    REQUIRE(run(storage::discard_stale(site, stale))->empty());
  }
  SECTION("whoever takes it away") {
    stale.names = {*work};
    REQUIRE(run(storage::discard_stale(site, stale)).value() == std::vector{*work});
    REQUIRE(run(storage::publish(site, order)).error().code() == Errc::not_found);
    REQUIRE(leftovers().empty());
    return;
  }
  REQUIRE(run(storage::publish(site, order)).has_value());
  REQUIRE(whole_steps() == std::vector{step_id(7)});
}

}  // namespace ckpt::test
