// Goal:   a part that was given to another writer is published as that one wrote it, whatever the
//         first writer still does to its files; nothing of the first one stays.
// Method: the first writer leaves half a file, and writes on while and after the step is published.
#include "support/run_task.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::storage {

using test::make_rank;
using test::step_id;
using test::StorageFixture;

TEST_CASE("part turn: names of turns are made and read", "[unit][storage]") {
  REQUIRE(turn_name("rank-00001.safetensors", 0) == "rank-00001.safetensors");
  REQUIRE(turn_name("rank-00001.safetensors", 12) == "rank-00001.safetensors.t12");
  REQUIRE(without_turn("rank-00001.safetensors.t12") == "rank-00001.safetensors");
  for (const std::string foreign : {"rank-00001.safetensors", "a.t0", "a.t01", "a.tx", "a.t"})
    REQUIRE(without_turn(foreign) == foreign);
}

struct TwoWriters : StorageFixture {
  TwoWriters() {
    open();
    order.at = step_id(7);
    order.job = "job";
    order.run = test::test_run;
    order.world_size = test::world_size;
    order.turns = {0, 2};
    order.work_name = work_directory_name(order.at, 1);
    REQUIRE(run(site.files().make_directory(site.at(order.work_name))));
    // Rank 1's first writer hangs in mid-file; the second one was lost with all that it wrote.
    const std::string name = make_rank(order.at, 1).record->layout.members.front().file_name;
    old_file = begin(name);
    lost_file = begin(name + ".t1");
    begin(format::part_name(1));
    begin(format::part_name(1) + ".t1");
    for (std::uint32_t rank = 0; rank < test::world_size; ++rank) {
      ShardToWrite source = test::source_of(make_rank(order.at, rank));
      source.turn = order.turns[rank];
      const auto written =
          run(write_shard(site.files(), source, site.at(order.work_name), TransferHooks()));
      REQUIRE(written);
      REQUIRE(written->turn == order.turns[rank]);
      order.digests.push_back(written->digest);
    }
  }
  std::unique_ptr<os::File> begin(const std::string& name) {
    const std::string path = os::join(site.at(order.work_name), name);
    auto file = run(site.files().create(path, os::Caching::direct));
    REQUIRE(file);
    write_on(**file);
    return std::move(*file);
  }
  void write_on(os::File& file) {
    REQUIRE(run(file.write_at(0, garbage)));
    REQUIRE(run(file.sync_data()));
  }

  std::vector<std::byte> garbage = std::vector<std::byte>(5000, std::byte{0xbd});
  PublishOrder order;
  std::unique_ptr<os::File> old_file;
  std::unique_ptr<os::File> lost_file;
};

TEST_CASE_METHOD(TwoWriters, "part turn: only the last writer's bytes are published",
                 "[unit][storage]") {
  const auto published = run(publish(site, order));
  REQUIRE((published ? "" : published.error().message()) == "");
  write_on(*old_file);
  write_on(*lost_file);
  REQUIRE(whole_steps() == std::vector{step_id(7)});
  const auto report = run(verify_checkpoint(site.files(), site.at(published->name)));
  REQUIRE(report);
  REQUIRE(report->is_good());
  REQUIRE(report->foreign.empty());
}

TEST_CASE_METHOD(TwoWriters, "part turn: a writer that wakes up in mid-publishing replaces nothing",
                 "[unit][storage]") {
  const auto name = GENERATE(as<std::string>(), "rank-00001.safetensors", "rank-00001.part");
  bool has_tried = false;
  disk.set_hook([&](std::string_view, const std::string& path) {
    if (has_tried || !path.ends_with(format::manifest_name)) return 0;
    has_tried = true;
    asio::io_context late_context;
    test::MemoryFileSystem late_files(disk);
    const std::string taken = os::join(site.at(order.work_name), name);
    const auto made = test::run_task(late_context, late_files.create(taken, os::Caching::direct));
    CHECK_FALSE(made);
    return 0;
  });
  REQUIRE(run(publish(site, order)));
  REQUIRE(has_tried);
  REQUIRE(whole_steps() == std::vector{step_id(7)});
}

TEST_CASE_METHOD(TwoWriters, "part turn: the leftovers of all writers are discarded",
                 "[unit][storage]") {
  REQUIRE(run(discard_work_directory(site, order.work_name, "given up")));
  REQUIRE_FALSE(disk.exists(site.at(order.work_name)));
  REQUIRE(leftovers().empty());
}

}  // namespace ckpt::storage
