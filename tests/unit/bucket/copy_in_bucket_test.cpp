// Goal:   a copy to, from or between buckets has every byte of its source or does not appear, goes
//         on where an earlier one ended, and two at once take nothing from each other.
// Method: copies between a disk and a server in memory; each request in turn is the last one that a
//         copy sends, or the one before which another copy, or a discarder, acts.
#include <catch2/catch.hpp>

#include "storage/bucket_removal.hpp"
#include "unit/bucket/copy_scene.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;
using Instead = std::optional<Result<bucket::Response>>;

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
  CHECK(counts.copied > 0);
  CHECK(newest_in(target) == 2);
  CHECK(text_at(target, "latest") == "step-000000002\n");
  CHECK(text_at(target, ".libckpt/run.json") == text_at(source, ".libckpt/run.json"));
  // An older one joins it, and does not become the latest.
  must_copy(1);
  CHECK(text_at(target, "latest") == "step-000000002\n");
  CHECK(newest_in(target) == 2);
  CHECK(must_copy(2).was_there);
  CHECK(counts.copied == 0);
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
    found_most = std::max(found_most, counts.found);
    REQUIRE(newest_in(target) == 2);
    CHECK(text_at(target, "latest") == "step-000000002\n");
    CHECK(attempts_at(2) == 1);
    CHECK(server.uploads.empty());
    REQUIRE(count < 500);
  }
  CHECK(found_most > 0);  // A rank that was there is not sent again.
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: no text advises mv for what lies in a bucket",
                 "[unit][bucket]") {
  save_source({2});
  must_copy(2);
  server.objects["copy/step-000000002/manifest.json"] = "damaged";
  const auto refused = try_copy(2);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text(),
             Catch::Contains("all objects below s3://bucket/copy/step-000000002/") &&
                 Catch::Contains("your bucket's own tool") && !Catch::Contains("mv "));
}

TEST_CASE_METHOD(CopyInBucket, "copy in bucket: two at once both succeed, with one checkpoint",
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
    return counts.copied;
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
  CHECK(counts.found > 0);
  CHECK(counts.copied + counts.found == all_bytes);
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
