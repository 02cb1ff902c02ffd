// Goal:   a work directory counts as left only when nothing in it has changed for long.
// Method: attempts on a disk in memory, with a clock that is set forward between writes.
#include "storage/left_attempts.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

TEST_CASE_METHOD(StorageFixture, "left attempts: an hour without a change makes one",
                 "[unit][storage]") {
  disk.set_time(clock.wall_time());
  open();
  must_save(step_id(1));
  const std::string name = *run(storage::make_work_directory(site, step_id(2), 7));
  const std::string path = site.at(name) + "/rank-00000.safetensors";
  REQUIRE(run(files.write_small(path, std::vector<std::byte>(10))).has_value());
  disk.put("/scratch/job/.step-000000009.t1.0000000000000001", "a file");
  disk.put_link("/scratch/job/.step-000000009.t1.0000000000000002", site.at(name));
  const auto found = [&] {
    const auto listed = run(storage::list_attempts(site));
    REQUIRE(listed.has_value());
    REQUIRE(listed->size() == 1);
    CHECK(listed->front().name == name);
    CHECK(listed->front().at == step_id(2));
    return listed->front();
  };
  CHECK_FALSE(found().is_left);
  CHECK(found().bytes == 10);
  clock.advance(storage::attempt_left_after - std::chrono::seconds(1));
  CHECK_FALSE(found().is_left);
  clock.advance(std::chrono::seconds(1));
  CHECK(found().is_left);
}

}  // namespace ckpt::test
