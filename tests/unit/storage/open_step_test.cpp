// Goal:   a published step is found and read without a path: by its name, or as a site of its own.
// Method: steps saved on a disk in memory; what is read is compared with what was saved.
#include "storage/open_step.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

TEST_CASE_METHOD(StorageFixture, "open step: each way in reads the same shard", "[unit][storage]") {
  open();
  must_save(step_id(7));
  const std::string name = catalog().checkpoints.front().name;
  const auto named = run(storage::OpenStep::in(site, name));
  REQUIRE(named);
  CHECK(os::display(named->place()) == os::join(site.directory(), name));
  const storage::Site itself(files, clock, os::join(site.directory(), name));
  const auto alone = run(storage::OpenStep::at(itself));
  REQUIRE(alone);
  const MadeShard saved = make_rank(step_id(7), 1);
  for (const storage::OpenStep& step : {*named, *alone}) {
    const auto record = run(storage::read_record(step, 1));
    REQUIRE(record);
    const auto shard = storage::shard_of(step, 1);
    REQUIRE(shard);
    CHECK(shard->record == format::digest_of(**record));
    std::vector<std::byte> bytes((*record)->bytes);
    REQUIRE(run(storage::read_shard(*shard, *record, bytes, storage::TransferHooks())));
    CHECK(format::digest_of(**record) == format::digest_of(*saved.record));
    CHECK(std::ranges::equal(bytes, std::span(*saved.bytes).first(bytes.size())));
    const auto opened = run(storage::open_files(*shard, *record));
    REQUIRE(opened);
    REQUIRE(run((*opened)->close()));
  }
  CHECK_FALSE(storage::shard_of(*named, world_size));
}

TEST_CASE_METHOD(StorageFixture, "open step: what is no step is not found", "[unit][storage]") {
  open();
  const auto missing = run(storage::OpenStep::in(site, "step-000000009"));
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code() == Errc::not_found);
  CHECK_FALSE(run(storage::OpenStep::at(site)));
}

TEST_CASE_METHOD(StorageFixture,
                 "list steps: the newest comes first, and others' names are left out",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {9, 10, 8}) must_save(step_id(step));
  disk.put_directory(os::join(site.directory(), "step-11"));
  disk.put_directory(os::join(site.directory(), "step-000000009.g2"));
  const auto names = run(storage::list_steps(site));
  REQUIRE(names);
  CHECK(*names == std::vector<std::string>{"step-000000010", "step-000000009.g2", "step-000000009",
                                           "step-000000008"});
}

}  // namespace ckpt::test
