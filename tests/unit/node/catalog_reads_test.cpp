// Goal:   what lies on storage is read by the node that needs it, and once: a publication reads no
//         old manifests, and of several nodes only the coordinator reads the catalog.
// Method: the reads of manifests are counted in the log of the disk.
#include <fmt/format.h>

#include <algorithm>

#include "unit/node/hosts.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::node {
namespace {

std::string manifest_of(std::uint64_t step) {
  return fmt::format("/scratch/job/step-{:09}/manifest.json", step);
}

std::size_t reads_of(const test::MemoryDisk& disk, std::uint64_t step) {
  const auto& log = disk.log();
  return static_cast<std::size_t>(std::count(log.begin(), log.end(), "read " + manifest_of(step)));
}

// As a coordinator and its nodes leave them.
void save_three_steps(test::Hosts& hosts) {
  const storage::Site site(hosts.files, hosts.clock, "/scratch/job");
  const auto must = [&](auto task) {
    const auto done = test::finish(hosts.clock, test::start(hosts.context, std::move(task)));
    REQUIRE((done ? "" : done.error().message()) == "");
  };
  storage::RunOrder order;
  order.job = "job";
  order.fresh_run = test::test_run;
  must(storage::open_run_directory(site, order));
  for (const std::uint64_t step : {1, 2, 3}) {
    const auto at = test::step_id(step);
    must(test::save(site, {test::make_rank(at, 0), test::make_rank(at, 1)}, step));
  }
  hosts.clock.advance(std::chrono::seconds(10));
  hosts.disk.clear_log();
}

}  // namespace

TEST_CASE("catalog reads: a publication reads the manifests of the newest two steps alone",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  for (std::uint64_t step = 3; step <= 6; ++step) {
    rank.clock.advance(std::chrono::seconds(10));
    disk.clear_log();
    rank.capture(Step{step});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{step}; }));
    rank.clock.advance(std::chrono::seconds(1));
    CAPTURE(step);
    if (step == 3) continue;  // Both before were too young to be known when they were published.
    // The one before still was.
    CHECK(reads_of(disk, step) == 1);
    CHECK(reads_of(disk, step - 1) == 1);
    for (std::uint64_t older = 1; older + 1 < step; ++older) CHECK(reads_of(disk, older) == 0);
  }
}

TEST_CASE("catalog reads: a trainer that starts again has nothing read that is known",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  for (const int times_before : {0, 1}) {
    rank.engine->detach(rank.session);
    rank.answer.reset();
    rank.clock.advance(std::chrono::seconds(10));
    disk.clear_log();
    REQUIRE(rank.restore().value() == Step{2});
    // The first time, they are old enough to be known from then on.
    CHECK(reads_of(disk, 1) == (times_before == 0 ? 1 : 0));
    CHECK(reads_of(disk, 2) == (times_before == 0 ? 1 : 0));
    rank.granted.clear();
  }
}

TEST_CASE("catalog reads: a step that was replaced under its name is seen by the next restore",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  rank.clock.advance(std::chrono::seconds(10));
  const auto ask_again = [&] {
    rank.engine->detach(rank.session);
    rank.answer.reset();
    rank.granted.clear();
    // The memory of both steps rots: only storage is left.
    for (std::uint32_t slot = 0; slot < rank.slots.size(); ++slot)
      std::ranges::fill(rank.tensor_in(slot), std::byte{});
    rank.verifies_offers = true;
    return rank.restore();
  };
  REQUIRE(ask_again().value() == Step{2});
  rank.clock.advance(std::chrono::seconds(10));
  const std::string content = disk.content(manifest_of(2));
  disk.put(manifest_of(2), "{}");
  REQUIRE(ask_again().value() == Step{1});
  rank.clock.advance(std::chrono::seconds(10));
  disk.put(manifest_of(2), content);
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("catalog reads: a step that got another name since it was seen is found",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    test::OneRank rank(disk);
    rank.begin_and_store_two_steps();
  }
  test::OneRank rank(disk);
  rank.clock.advance(std::chrono::seconds(10));
  // Another coordinator saves it again where no exchange exists: in the moment before it is read
  // for its bytes, after the vote has seen it.
  std::size_t reads = 0;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb != "read" || path != manifest_of(2) || ++reads != 2) return 0;
    const std::string old_name = "/scratch/job/step-000000002";
    for (const std::string& file : disk.tree()) {
      if (file.starts_with(old_name + "/") && !file.ends_with("/"))
        disk.put(old_name + ".g2" + file.substr(old_name.size()), disk.content(file));
    }
    disk.erase(old_name);
    return 0;
  });
  REQUIRE(rank.restore().value() == Step{2});
  CHECK(reads == 2);
  CHECK(disk.exists("/scratch/job/step-000000002.g2/manifest.json"));
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("catalog reads: a node that does not coordinate reads no manifest", "[unit][node]") {
  const test::Hosts::Names names{"one", "two"};
  test::Hosts hosts({"A", "B"});
  save_three_steps(hosts);
  SECTION("while the coordinator is there") {
    for (const std::uint32_t rank : {0u, 1u}) {
      const Status attached = hosts.attach(rank, names, {0, 1}, "/scratch/job");
      REQUIRE((attached ? "" : attached.error().message()) == "");
      REQUIRE(hosts.engines[rank]->call(hosts.ranks[rank].session,
                                        control::AskRestore{1, std::nullopt}));
    }
    hosts.clock.advance(std::chrono::seconds(10));
    for (const std::uint64_t step : {1, 2, 3}) CHECK(reads_of(hosts.disk, step) == 1);
  }
  SECTION("before it may take itself for the coordinator") {
    REQUIRE(hosts.attach(1, names, {0, 1}, "/scratch/job"));
    REQUIRE(hosts.engines[1]->call(hosts.ranks[1].session, control::AskRestore{1, std::nullopt}));
    hosts.clock.advance(std::chrono::seconds(1));
    for (const std::uint64_t step : {1, 2, 3}) CHECK(reads_of(hosts.disk, step) == 0);
    hosts.clock.advance(std::chrono::seconds(10));
    for (const std::uint64_t step : {1, 2, 3}) CHECK(reads_of(hosts.disk, step) == 1);
  }
}

}  // namespace ckpt::node
