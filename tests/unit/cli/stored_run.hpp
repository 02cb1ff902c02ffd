// StoredRun: a job's directory on the real disk, made as a daemon makes it, for the commands that
// change what lies there.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/workplace.hpp"
#include "support/temporary_directory.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::cli {

class StoredRun {
 public:
  explicit StoredRun(std::string name = "run") : dir(directory.file(name)) {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test::test_run;
    must(workplace.run(storage::open_run_directory(site(), order)));
    store_history({{1, {}}});
  }
  void store_history(std::vector<format::TimelineStart> history) {
    format::Timelines timelines;
    timelines.run = test::test_run;
    timelines.history = std::move(history);
    must(workplace.run(storage::store_timelines(site(), timelines, 1)));
  }
  // Returns the path of the checkpoint, of two ranks.
  std::string save(std::uint64_t step, double loss = -1) {
    std::vector<test::MadeShard> shards;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      test::ShardWish wish;
      wish.at = test::step_id(step);
      wish.rank = rank;
      wish.world_size = 2;
      wish.blob_bytes = 400;
      if (loss >= 0) wish.metrics = format::render(format::Metrics{{"loss", loss}});
      shards.push_back(test::make_shard(wish));
    }
    return save(shards);
  }
  std::string save(const std::vector<test::MadeShard>& shards) {
    return dir + "/" + must(workplace.run(test::save(site(), shards, ++attempts))).name;
  }
  static Result<Outcome> copy_to(const std::string& from, const std::string& to) {
    CopyOptions order;
    order.from = from;
    order.to = to;
    order.json = true;
    return copy(order);
  }
  void damage(const std::string& path, std::streamoff offset = 4200) const {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    REQUIRE(file.is_open());
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    REQUIRE(file.good());
  }
  // Names in the directory, sorted; without those of the run.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      const std::string name = entry.path().filename();
      if (name != ".libckpt" && name != "latest") found.push_back(name);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  storage::Site site() { return {workplace.files(), workplace.clock(), dir}; }
  // No daemon runs there.
  std::string runtime_dir() const { return directory.file("no-daemon"); }

  template <class T>
  static T must(Result<T> result) {
    REQUIRE((result ? "" : result.error().message()) == "");
    return std::move(result).value();
  }
  static void must(const Status& status) {
    REQUIRE((status ? "" : status.error().message()) == "");
  }

  test::TemporaryDirectory directory;
  std::string dir;
  Workplace workplace;
  std::uint64_t attempts = 0;
};

}  // namespace ckpt::cli
