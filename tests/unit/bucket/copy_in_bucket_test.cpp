// Goal:   a copy to, from or between buckets has every byte of its source or does not appear, goes
//         on where an earlier one ended, and two at once take nothing from each other.
// Method: copies between a disk and a server in memory; each request in turn is the last one that a
//         copy sends, or the one before which another copy, or a discarder, acts.
#include <catch2/catch.hpp>

#include "bucket/any_file_system.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_publish.hpp"
#include "storage/copy.hpp"
#include "storage/search.hpp"
#include "unit/bucket/bucket_fixture.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;
using Instead = std::optional<Result<bucket::Response>>;

class CopyInBucket : public BucketFixture {
 public:
  CopyInBucket() {
    disk.put_directory("/scratch");
    google.is_google = true;
  }

  void save_source(std::vector<std::uint64_t> steps) {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test_run;
    order.attempt = ++attempts;
    must(storage::open_run_directory(source, order));
    timelines.run = test_run;
    timelines.history = {{1, {}}};
    must(storage::store_timelines(source, timelines, 1));
    for (const std::uint64_t step : steps) must(save_step(step_id(step)));
  }
  Task<storage::PublishedStep> save_step(format::StepId at) {
    storage::PublishOrder order;
    order.job = "job";
    order.run = test_run;
    order.at = at;
    order.world_size = world_size;
    CKPT_CO_TRY(order.work_name, co_await storage::make_work_directory(source, at, ++attempts));
    const std::string path = storage::attempt_path(source, order.work_name);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const storage::TransferHooks hooks;
      CKPT_CO_TRY(const auto flushed,
                  co_await storage::write_shard(*all, source_of(make_rank(at, rank)), path, hooks));
      order.digests.push_back(flushed.digest);
    }
    auto published = co_await storage::publish(source, order);
    co_return published;
  }
  storage::CopyOrder order_of(std::uint64_t step) {
    storage::CopyOrder order;
    const std::string name = storage::step_directory_name(Step{step});
    order.source = source.at(name);
    order.manifest = must(storage::read_manifest(source, name));
    order.timelines = std::make_shared<const format::Timelines>(timelines);
    order.attempt = ++attempts;
    order.done = [this](std::uint64_t bytes, bool was_there) {
      (was_there ? bytes_found : bytes_copied) += bytes;
    };
    return order;
  }
  Result<storage::Copied> try_copy(std::uint64_t step) {
    bytes_copied = bytes_found = 0;
    return run(storage::copy_checkpoint(target, order_of(step)));
  }
  storage::Copied must_copy(std::uint64_t step) {
    auto copied = try_copy(step);
    REQUIRE((copied ? "" : copied.error().message()) == "");
    return *copied;
  }
  // As a restore finds it; every byte is read. 0: nothing is there.
  std::uint64_t newest_in(const storage::Site& site) {
    const auto found = run(storage::find_checkpoint(*all, clock, site.directory()));
    if (!found) {
      CHECK(found.error().code() == Errc::not_found);
      return 0;
    }
    CHECK(found->passed_over.empty());
    const auto report = must(storage::verify_checkpoint(*all, found->directory));
    CHECK(report.is_good());
    CHECK(report.foreign.empty());
    return number(found->manifest->at.step);
  }
  std::string text_at(const storage::Site& site, const std::string& name) {
    const auto bytes = must(all->read_small(site.at(name), std::uint64_t{1} << 20));
    return text_of(bytes);
  }
  // Folders of attempts at this step, in the target.
  std::size_t attempts_at(std::uint64_t step) {
    const std::string directory = target.at(storage::step_directory_name(Step{step}));
    std::size_t count = 0;
    for (const os::DirectoryEntry& entry : must(all->list(directory)))
      count += entry.kind == os::EntryKind::directory ? 1 : 0;
    return count;
  }

  MemoryDisk disk{1};
  MemoryServer google;
  std::unique_ptr<os::FileSystem> all = bucket::with_buckets(
      std::make_unique<MemoryFileSystem>(disk),
      [this](bucket::Scheme scheme) -> Result<std::unique_ptr<bucket::BucketFileSystem>> {
        const bool is_google = scheme == bucket::Scheme::gs;
        return std::make_unique<bucket::BucketFileSystem>(
            client_of(is_google ? google : server, clock, scheme));
      });
  storage::Site source{*all, clock, "/scratch/job"};
  storage::Site target{*all, clock, "s3://bucket/copy"};
  format::Timelines timelines;
  std::uint64_t attempts = 0;
  std::uint64_t bytes_copied = 0, bytes_found = 0;
};

}  // namespace

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: is the same checkpoint, whatever lies where",
                 "[unit][bucket]") {
  const auto [from, to] =
      GENERATE(table<std::string, std::string>({{"/scratch/job", "s3://bucket/copy"},
                                                {"s3://bucket/job", "/scratch/copy"},
                                                {"s3://bucket/job", "s3://bucket/copy"},
                                                {"s3://bucket/job", "gs://bucket/copy"},
                                                {"gs://bucket/job", "/scratch/copy"}}));
  CAPTURE(from, to);
  source = storage::Site(*all, clock, from);
  target = storage::Site(*all, clock, to);
  save_source({1, 2});
  const auto copied = must_copy(2);
  CHECK(copied.name == "step-000000002");
  CHECK_FALSE(copied.was_there);
  CHECK(bytes_copied > 0);
  CHECK(newest_in(target) == 2);
  CHECK(text_at(target, "latest") == "step-000000002\n");
  CHECK(text_at(target, ".libckpt/run.json") == text_at(source, ".libckpt/run.json"));
  // An older one joins it, and does not become the latest.
  must_copy(1);
  CHECK(text_at(target, "latest") == "step-000000002\n");
  CHECK(newest_in(target) == 2);
  CHECK(must_copy(2).was_there);
  CHECK(bytes_copied == 0);
  CHECK(server.uploads.empty());

  const auto there = must(storage::read_manifest(target, "step-000000002"));
  const auto here = must(storage::read_manifest(source, "step-000000002"));
  CHECK(storage::describe(*there, "x").digests == storage::describe(*here, "x").digests);
  CHECK(there->created_unix_seconds == here->created_unix_seconds);
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: there and back again, every file is as it was",
                 "[unit][bucket]") {
  save_source({2});
  must_copy(2);
  source = target;
  target = storage::Site(*all, clock, "/scratch/back");
  must_copy(2);
  for (const std::string file : {"manifest.json", "rank-00000.part", "rank-00000.safetensors",
                                 "rank-00001.part", "rank-00001.safetensors"}) {
    CAPTURE(file);
    CHECK(disk.content("/scratch/back/step-000000002/" + file) ==
          disk.content("/scratch/job/step-000000002/" + file));
  }
}

TEST_CASE_METHOD(CopyInBucket,
                 "copy in bucket: whichever request is the last, the next copy is whole",
                 "[unit][bucket]") {
  save_source({2});
  bool is_done = false;
  std::uint64_t found_most = 0;
  for (std::size_t count = 0; !is_done; ++count) {
    CAPTURE(count);
    server.objects.clear();
    server.uploads.clear();
    server.log.clear();
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() <= count) return std::nullopt;
      return MemoryServer::error(403, "Dead");
    };
    const auto copied = try_copy(2);
    is_done = server.log.size() <= count;
    server.before = nullptr;
    const bool is_there = newest_in(target) == 2;
    if (copied) REQUIRE(is_there);
    const auto again = must_copy(2);
    CHECK(again.was_there == is_there);
    found_most = std::max(found_most, bytes_found);
    REQUIRE(newest_in(target) == 2);
    CHECK(attempts_at(2) == 1);
    CHECK(server.uploads.empty());
    REQUIRE(count < 500);
  }
  CHECK(found_most > 0);  // A rank that was there is not sent again.
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: of two at once both succeed, with one checkpoint",
                 "[unit][bucket]") {
  save_source({2});
  auto theirs = order_of(2);
  theirs.done = nullptr;
  bool is_over = false;
  for (std::size_t count = 1; !is_over; ++count) {
    CAPTURE(count);
    server.objects.clear();
    server.log.clear();
    CopyInBucket other;  // It copies, all at once, before our request of this number.
    other.save_source({2});
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() != count) return std::nullopt;
      std::swap(server.objects, other.server.objects);
      other.must_copy(2);
      std::swap(server.objects, other.server.objects);
      return std::nullopt;
    };
    const auto copied = try_copy(2);
    is_over = server.log.size() < count;
    server.before = nullptr;
    REQUIRE((copied ? "" : copied.error().message()) == "");
    REQUIRE(newest_in(target) == 2);
    CHECK(attempts_at(2) == 1);
    REQUIRE(count < 500);
  }
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: the objects of a published copy are never missing",
                 "[unit][bucket]") {
  save_source({2});
  must_copy(2);
  const auto whole = server.objects;
  server.objects.erase("copy/step-000000002/manifest.json");  // As the other copy saw it.
  for (auto& [key, content] : server.objects)
    if (key.ends_with("rank-00001.safetensors")) content.back() ^= 1;
  server.after = [&](const bucket::Request& request, Result<bucket::Response>&) {
    CHECK((request.method != "DELETE" || request.key.starts_with("copy/.libckpt/")));
    for (const auto& [key, content] : whole)
      if (key.find("/rank-") != std::string::npos) CHECK(server.objects.contains(key));
  };
  must_copy(2);
  server.after = nullptr;
  CHECK(newest_in(target) == 2);
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: a discarded attempt is not used again",
                 "[unit][bucket]") {
  save_source({2});
  must_copy(2);
  server.objects.erase("copy/step-000000002/manifest.json");
  const auto part = std::ranges::find_if(
      server.objects, [](const auto& object) { return object.first.ends_with("rank-00000.part"); });
  REQUIRE(part != server.objects.end());
  const std::string directory = part->first.substr(0, part->first.rfind('/'));
  server.objects[directory + "/" + std::string(storage::discarded_name)] = "";  // Its maker died.
  CHECK_FALSE(must_copy(2).was_there);
  const std::string folder(os::file_name(directory));
  CHECK(text_at(target, "step-000000002/manifest.json").find(folder) == std::string::npos);
  CHECK(must(storage::verify_checkpoint(*all, target.at("step-000000002"))).is_good());
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: an interrupted one goes on, rank by rank",
                 "[unit][bucket]") {
  save_source({2});
  const std::uint64_t all_bytes = [&] {
    must_copy(2);
    return bytes_copied;
  }();
  server.objects.clear();
  auto order = order_of(2);
  // Once the first rank is there.
  order.is_cancelled = [&] {
    return std::ranges::any_of(server.objects, [](const auto& object) {
      return object.first.ends_with("rank-00000.part");
    });
  };
  const auto copied = run(storage::copy_checkpoint(target, order));
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code() == Errc::cancelled);
  CHECK(newest_in(target) == 0);
  must_copy(2);
  CHECK(bytes_found > 0);
  CHECK(bytes_copied + bytes_found == all_bytes);
  CHECK(newest_in(target) == 2);
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: a damaged source makes no copy", "[unit][bucket]") {
  source = storage::Site(*all, clock, "s3://bucket/job");
  target = storage::Site(*all, clock, GENERATE("s3://bucket/copy", "/scratch/copy"));
  save_source({2});
  for (auto& [key, content] : server.objects)
    if (key.ends_with("rank-00001.safetensors")) content.back() ^= 1;
  const auto copied = try_copy(2);
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code() == Errc::corruption);
  CHECK(newest_in(target) == 0);
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: another checkpoint of the name is left as it is",
                 "[unit][bucket]") {
  save_source({1, 2});
  must_copy(1);
  const std::string path = "copy/step-000000002/manifest.json";
  server.objects[path] = "{\"format\":\"another\"}";
  const auto copied = try_copy(2);
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code() == Errc::invalid_argument);
  CHECK(server.objects[path] == "{\"format\":\"another\"}");
}

}  // namespace ckpt::test
