// Goal:   steps in a bucket are published whole or not at all, by one of several daemons, and what
//         is removed is never what was reported durable.
// Method: publishing, discarding and retention on a server in memory; each request in turn is the
//         last one that a daemon sends, or the one before which another daemon acts.
#include <catch2/catch.hpp>

#include "storage/attempt.hpp"
#include "storage/event_log.hpp"
#include "storage/left_attempts.hpp"
#include "storage/timeline_claim.hpp"
#include "support/remove_named.hpp"
#include "unit/bucket/bucket_fixture.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Instead = std::optional<Result<bucket::Response>>;

class StepsInBucket : public BucketFixture {
 public:
  void open() { must(storage::open_run_directory(site, run_order())); }
  storage::RunOrder run_order() {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test_run;
    order.attempt = ++attempts;
    return order;
  }
  Task<storage::PublishOrder> write(format::StepId at, std::uint64_t attempt,
                                    std::uint32_t turn = 0) {
    return write_step(site, made_ranks(at), attempt, compression, turn);
  }
  storage::PublishOrder must_write(format::StepId at, std::uint32_t turn = 0) {
    return must(write(at, ++attempts, turn));
  }
  void must_save(format::StepId at) { must(storage::publish(site, must_write(at))); }
  std::vector<format::StepId> whole_steps() {
    storage::CatalogOptions options;
    options.run = test_run;
    std::vector<format::StepId> steps;
    const auto catalog = must(storage::read_catalog(site, options));
    REQUIRE(catalog.rejected.empty());
    for (const storage::Checkpoint& checkpoint : catalog.checkpoints) {
      must(check_content(site, checkpoint));
      steps.push_back(checkpoint.at);
    }
    return steps;
  }
  std::vector<std::string> discard_below(std::uint64_t timeline) {
    storage::StaleAttempts stale;
    stale.timelines_below = timeline;
    return must(storage::discard_stale(site, stale));
  }
  // Keys of the steps that are not of the named folder.
  std::size_t objects_in(const std::string& part) const {
    return static_cast<std::size_t>(std::ranges::count_if(server.objects, [&](const auto& object) {
      return object.first.find(part) != std::string::npos;
    }));
  }

  storage::Site site{files, clock, "s3://bucket/run"};
  std::uint64_t attempts = 0;
  std::optional<storage::Compression> compression;
};

storage::StaleAttempts stale_of(const storage::PublishOrder& order) {
  storage::StaleAttempts stale;
  stale.timelines_below = 0;
  stale.names.push_back(order.work_name);
  return stale;
}

std::string folder_of(const storage::PublishOrder& order) {
  return storage::attempt_folder(storage::parse_work_directory(order.work_name).value());
}

}  // namespace

TEST_CASE_METHOD(StepsInBucket, "bucket: a saved step reads back byte for byte", "[unit][bucket]") {
  open();
  REQUIRE(whole_steps().empty());
  must_save(step_id(7));
  must_save(step_id(8));
  REQUIRE(whole_steps() == std::vector{step_id(7), step_id(8)});
  CHECK(server.objects["run/latest"] == "step-000000008\n");
  CHECK(objects_in("/.libckpt/log/") == 2);
  CHECK(server.uploads.empty());
  server.time = "Sat, 28 Nov 2026 06:37:10 GMT";
  CHECK(must(storage::list_attempts(site)).empty());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a compressed step reads back byte for byte",
                 "[unit][bucket]") {
  compression = storage::Compression{};
  must_save(step_id(1));
  must_save(step_id(2));
  CHECK(objects_in("rank-00001.safetensors.ckz") == 2);
  CHECK(whole_steps() == std::vector{step_id(1), step_id(2)});
  const auto report = must(
      storage::verify_checkpoint(site.files(), site.at(storage::step_directory_name(Step{1}))));
  CHECK(report.is_good());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a run that was copied to a disk is pruned there",
                 "[unit][bucket]") {
  open();
  must_save(step_id(7));
  must(storage::publish(site, must_write(step_id(8), 1)));
  MemoryDisk disk(1);
  for (const auto& [key, content] : server.objects) disk.put("/" + key, content);
  MemoryFileSystem local(disk);
  const storage::Site there(local, clock, "/run");
  const auto files_of = [&](const std::string& step) {
    std::vector<std::string> left;
    for (const std::string& path : disk.tree())
      if (path.find(step) != std::string::npos && !path.ends_with("/")) left.push_back(path);
    return left;
  };
  const auto folders_left = [&] {
    return std::ranges::count_if(disk.tree(), [](const std::string& path) {
      return path.find("step-") != std::string::npos;
    });
  };
  REQUIRE(files_of("step-000000008").size() > 4);
  SECTION("all of it") {
    must(remove_named(there, "step-000000007", test_run));
    must(remove_named(there, "step-000000008", test_run));
    CHECK(folders_left() == 0);
  }
  SECTION("not what somebody has put there") {
    const std::string folder =
        must(storage::read_manifest(there, "step-000000008"))->shards[1].folder;
    const std::vector<std::string> foreign = {
        "/run/step-000000008/" + folder + "/mine.txt",
        "/run/step-000000008/t9.0000000000000001/rank-00000.part"};
    for (const std::string& path : foreign) disk.put(path, "mine");
    must(remove_named(there, "step-000000008", test_run));
    CHECK(files_of("step-000000008") == foreign);
  }
}

TEST_CASE_METHOD(StepsInBucket, "bucket: an object ends where it is cut before it exists",
                 "[unit][bucket]") {
  constexpr std::uint64_t piece_bytes = 3 * MiB;
  // One part; a part and what is left of the next; a whole part, and none of the others.
  for (const std::uint64_t bytes : {MiB, 9 * MiB + 5, 8 * MiB}) {
    CAPTURE(bytes);
    std::vector<std::byte> content(bytes);
    for (std::size_t index = 0; index < bytes; index += 1000)
      content[index] = static_cast<std::byte>(index / 1000);
    const std::string path = site.at("object");
    const auto file = must(files.create(path, os::Caching::direct));
    must(file->allocate(30 * MiB));
    for (std::uint64_t offset = 0; offset < bytes; offset += piece_bytes) {
      const auto part = std::span(content).subspan(offset, std::min(piece_bytes, bytes - offset));
      std::vector<std::byte> piece(part.begin(), part.end());  // It may change after the call.
      const std::span<const std::byte> view(piece);
      must(file->write_at(offset, view));
      std::ranges::fill(piece, std::byte{0xee});
    }
    must(file->truncate(bytes));
    must(file->sync_data());
    CHECK(must(files.read_small(path, 64 * MiB)) == content);
  }
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a part of a later turn lies in its own folder",
                 "[unit][bucket]") {
  open();
  must(storage::publish(site, must_write(step_id(7), 2)));
  CHECK(objects_in("/turn-2/rank-00000") == 3);
  CHECK(objects_in("/turn-2/rank-00001") == 0);
  REQUIRE(whole_steps() == std::vector{step_id(7)});
  const auto report = must(storage::verify_checkpoint(files, site.at("step-000000007")));
  CHECK(report.is_good());
  CHECK(report.foreign.empty());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: files without a manifest are no checkpoint",
                 "[unit][bucket]") {
  open();
  must_write(step_id(7));
  REQUIRE(whole_steps().empty());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a save that ends at any request leaves all or nothing",
                 "[unit][bucket]") {
  open();
  must_save(step_id(6));
  const auto before = server.objects;
  bool is_done = false;
  for (std::size_t count = 0; !is_done; ++count) {
    server.objects = before;
    server.uploads.clear();
    const std::size_t begin = server.log.size();
    // A dead daemon sends nothing more; the client's tries end at once.
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() - begin <= count) return std::nullopt;
      return MemoryServer::error(403, "Dead");
    };
    const auto order = run(write(step_id(7), ++attempts));
    const auto published = order ? run(storage::publish(site, *order))
                                 : Result<storage::PublishOutcome>(fail(order.error()));
    is_done = server.log.size() - begin <= count;
    server.before = nullptr;
    const auto steps = whole_steps();
    REQUIRE(steps.front() == step_id(6));
    if (published) REQUIRE(steps.back() == step_id(7));
    const bool is_there = steps.back() == step_id(7);
    discard_below(2);
    REQUIRE(whole_steps() == steps);
    CHECK(objects_in("step-000000007/") == (is_there ? 7 : 0));
    CHECK(server.uploads.empty());
    REQUIRE(count < 1000);
  }
}

TEST_CASE_METHOD(StepsInBucket, "bucket: one of two daemons that commit one step wins",
                 "[unit][bucket]") {
  open();
  const std::uint64_t timeline = GENERATE(1, 2);
  const auto ours = must_write(step_id(7));
  const auto theirs = must_write(step_id(7, timeline));
  const auto before = server.objects;
  bool is_over = false;
  std::size_t lost = 0;
  for (std::size_t count = 1; !is_over; ++count) {
    server.objects = before;
    server.log.clear();
    bool is_published_there = false;
    BucketFixture other;  // It publishes, all at once, before our request of this number.
    storage::Site there(other.files, other.clock, "s3://bucket/run");
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() != count) return std::nullopt;
      std::swap(server.objects, other.server.objects);
      is_published_there = other.run(storage::publish(there, theirs)).has_value();
      std::swap(server.objects, other.server.objects);
      return std::nullopt;
    };
    const auto published = run(storage::publish(site, ours));
    is_over = server.log.size() < count;
    server.before = nullptr;
    REQUIRE(whole_steps() == std::vector{step_id(7, is_published_there ? timeline : 1)});
    const std::string manifest = server.objects["run/step-000000007/manifest.json"];
    const bool is_ours = manifest.find(folder_of(ours)) != std::string::npos;
    CHECK(is_ours == (manifest.find(folder_of(theirs)) == std::string::npos));
    if (!published) {
      ++lost;
      CHECK_FALSE(is_ours);
    }
    REQUIRE(count < 200);
  }
  CHECK(lost > 0);
}

TEST_CASE_METHOD(StepsInBucket, "bucket: other bytes of the same step and timeline are refused",
                 "[unit][bucket]") {
  open();
  must_save(step_id(7));
  auto order = must_write(step_id(7));
  const std::string path = "run/step-000000007/manifest.json";
  const auto manifest = must(storage::read_manifest(site, "step-000000007"));
  format::Manifest other = *manifest;
  other.shards[0].record_digest.low ^= 1;
  server.objects[path] = format::render(other).value();
  const auto published = run(storage::publish(site, order));
  REQUIRE_FALSE(published.has_value());
  CHECK(published.error().code() == Errc::invalid_argument);
  CHECK(server.objects[path] == format::render(other).value());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a newer timeline replaces a step, an older one does not",
                 "[unit][bucket]") {
  open();
  must_save(step_id(7));
  must_save(step_id(7, 2));
  REQUIRE(whole_steps() == std::vector{step_id(7, 2)});
  CHECK(objects_in("/t1.") == 0);
  const auto stale = run(storage::publish(site, must_write(step_id(7, 1))));
  REQUIRE_FALSE(stale.has_value());
  CHECK(stale.error().code() == Errc::invalid_argument);
  REQUIRE(whole_steps() == std::vector{step_id(7, 2)});
}

TEST_CASE_METHOD(StepsInBucket, "bucket: an object that is not ours is never replaced",
                 "[unit][bucket]") {
  open();
  const std::string path = "run/step-000000007/manifest.json";
  server.objects[path] = "{\"format\":\"another\"}";
  const auto published = run(storage::publish(site, must_write(step_id(7))));
  REQUIRE_FALSE(published.has_value());
  CHECK(published.error().code() == Errc::invalid_argument);
  CHECK(server.objects[path] == "{\"format\":\"another\"}");
}

TEST_CASE_METHOD(StepsInBucket, "bucket: an order that was carried out is found again",
                 "[unit][bucket]") {
  open();
  const auto order = must_write(step_id(7));
  must(storage::publish(site, order));
  const auto again = must(storage::publish(site, order));
  CHECK(again.was_there);
  CHECK(again.name == "step-000000007");
}

TEST_CASE_METHOD(StepsInBucket, "bucket: publishing and discarding one attempt never both succeed",
                 "[unit][bucket]") {
  open();
  const auto order = must_write(step_id(7));
  const auto before = server.objects;
  bool is_over = false;
  for (std::size_t count = 1; !is_over; ++count) {
    server.objects = before;
    server.log.clear();
    // The other daemon publishes the attempt while this one discards it. Its requests come
    // between two of ours: all of them, since it is another client.
    BucketFixture other;
    storage::Site there(other.files, other.clock, "s3://bucket/run");
    std::optional<Result<storage::PublishOutcome>> published;
    const auto exchange_objects = [&] { std::swap(server.objects, other.server.objects); };
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() != count) return std::nullopt;
      exchange_objects();
      published.emplace(other.run(storage::publish(there, order)));
      exchange_objects();
      return std::nullopt;
    };
    const auto discarded = run(storage::discard_stale(site, stale_of(order)));
    is_over = server.log.size() < count;
    server.before = nullptr;
    REQUIRE(discarded.has_value());
    if (!published) {
      CHECK_FALSE(discarded->empty());
      continue;
    }
    if (published->has_value()) {
      CHECK(discarded->empty());
      REQUIRE(whole_steps() == std::vector{step_id(7)});
    } else {
      REQUIRE(whole_steps().empty());
    }
    REQUIRE(count < 200);
  }
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a publisher that is discarded midway takes its step back",
                 "[unit][bucket]") {
  open();
  const bool has_older = GENERATE(false, true);
  if (has_older) must_save(step_id(7));
  const auto order = must_write(step_id(7, 2));
  const auto before = server.objects;
  bool is_over = false;
  std::size_t withdrawn = 0;
  for (std::size_t count = 1; !is_over; ++count) {
    server.objects = before;
    server.log.clear();
    BucketFixture other;
    storage::Site there(other.files, other.clock, "s3://bucket/run");
    std::optional<std::vector<std::string>> discarded;
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() != count) return std::nullopt;
      std::swap(server.objects, other.server.objects);
      discarded = other.must(storage::discard_stale(there, stale_of(order)));
      std::swap(server.objects, other.server.objects);
      return std::nullopt;
    };
    const auto published = run(storage::publish(site, order));
    is_over = server.log.size() < count;
    server.before = nullptr;
    const std::vector<format::StepId> older =
        has_older ? std::vector{step_id(7)} : std::vector<format::StepId>();
    if (published) {
      CHECK((!discarded || discarded->empty()));
      REQUIRE(whole_steps() == std::vector{step_id(7, 2)});
    } else {
      ++withdrawn;
      REQUIRE(whole_steps() == older);
    }
    REQUIRE(count < 200);
  }
  CHECK(withdrawn > 0);
}

TEST_CASE_METHOD(StepsInBucket,
                 "bucket: retention removes the manifest first, and foreign objects never",
                 "[unit][bucket]") {
  open();
  for (const std::uint64_t step : {5, 6, 7}) must_save(step_id(step));
  server.objects["run/step-000000005/notes.txt"] = "mine";
  storage::RetentionOrder order;
  order.run = test_run;
  order.rule.max_ckpt_num = 1;
  storage::CatalogOptions options;
  options.run = test_run;
  auto catalog = must(storage::read_catalog(site, options));
  server.log.clear();
  const auto removed = must(storage::apply_retention(site, order, catalog));
  CHECK(removed.size() == 2);
  CHECK(whole_steps() == std::vector{step_id(7)});
  CHECK(objects_in("step-000000005/") == 1);
  CHECK(objects_in("step-000000006/") == 0);
  std::string deleted;
  for (const std::string& line : server.log)
    if (line.starts_with("DELETE")) {
      deleted = line;
      break;
    }
  CHECK(deleted.ends_with("/manifest.json"));
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a deletion that ends at any request leaves no half step",
                 "[unit][bucket]") {
  open();
  must_save(step_id(6));
  must_save(step_id(7));
  const auto before = server.objects;
  bool is_done = false;
  for (std::size_t count = 0; !is_done; ++count) {
    server.objects = before;
    server.log.clear();
    server.before = [&](const bucket::Request&) -> Instead {
      if (server.log.size() <= count) return std::nullopt;
      return MemoryServer::error(403, "Dead");
    };
    const Status removed = run(remove_named(site, "step-000000006", test_run));
    is_done = server.log.size() <= count;
    server.before = nullptr;
    const auto steps = whole_steps();
    if (removed) REQUIRE(steps == std::vector{step_id(7)});
    REQUIRE(steps.back() == step_id(7));
    discard_below(2);
    CHECK(whole_steps() == steps);
    CHECK(objects_in("step-000000006/") == (steps.size() == 2 ? 7 : 0));
    REQUIRE(count < 200);
  }
}

TEST_CASE_METHOD(StepsInBucket, "bucket: uploads of killed daemons are aborted when they are stale",
                 "[unit][bucket]") {
  open();
  server.uploads["u1"] = "run/step-000000009/t1.00000000000000aa/rank-00000.safetensors";
  server.uploads["u2"] = "run/step-000000009/t2.00000000000000bb/rank-00000.safetensors";
  server.uploads["u3"] = "run/step-000000009/other/rank-00000.safetensors";
  server.uploads["u4"] = "elsewhere";
  CHECK(discard_below(2) == std::vector<std::string>{".step-000000009.t1.00000000000000aa"});
  CHECK(server.uploads.size() == 3);
  CHECK_FALSE(server.uploads.contains("u1"));
}

TEST_CASE_METHOD(StepsInBucket, "bucket: old uploads beside published objects are aborted",
                 "[unit][bucket]") {
  open();
  must_save(step_id(7));
  const auto object = std::ranges::find_if(server.objects, [](const auto& each) {
    return each.first.ends_with("/rank-00000.safetensors");
  });
  REQUIRE(object != server.objects.end());
  const auto objects = server.objects;
  server.uploads["u1"] = object->first;
  server.uploads["u2"] = "run/step-000000007/other/rank-00000.safetensors";
  server.uploads["u3"] = "run/step-000000009/t2.00000000000000bb/rank-00000.safetensors";
  server.time = "Fri, 27 Nov 2026 06:37:09 GMT";
  CHECK(discard_below(2).empty());
  CHECK(server.uploads.size() == 3);  // A copy or a repair may be under way.
  server.time = "Fri, 27 Nov 2026 06:37:10 GMT";
  CHECK(discard_below(2).empty());
  CHECK(server.uploads.size() == 2);
  CHECK_FALSE(server.uploads.contains("u1"));
  CHECK(server.objects == objects);
}

TEST_CASE_METHOD(StepsInBucket, "bucket: the records of a job are objects that one daemon makes",
                 "[unit][bucket]") {
  open();
  const auto marker = must(storage::read_run_marker(site));
  CHECK(marker.job == "job");
  auto other = run_order();
  other.job = "another";
  CHECK(run(storage::open_run_directory(site, other)).error().code() == Errc::invalid_argument);
  storage::Claim claim;
  claim.timeline = 2;
  claim.start_id = 1;
  CHECK(must(storage::claim_timeline(site, claim)) == storage::Claimed::now);
  CHECK(must(storage::claim_timeline(site, claim)) == storage::Claimed::before);
  claim.start_id = 3;
  CHECK(must(storage::claim_timeline(site, claim)) == storage::Claimed::taken);
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history.push_back({});
  timelines.history.back().timeline = 1;
  must(storage::store_timelines(site, timelines, 1));
  must(storage::store_timelines(site, timelines, 2));
  CHECK(must(storage::load_timelines(site, test_run)) == timelines);
  must(storage::discard_claims(site, 3));
  CHECK(objects_in("timeline-") == 0);
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a server that ignores conditions is refused",
                 "[unit][bucket]") {
  server.ignores_conditions = true;
  const auto opened = run(storage::open_run_directory(site, run_order()));
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().code() == Errc::unsupported);
  CHECK(server.objects.empty());
}

TEST_CASE_METHOD(StepsInBucket, "bucket: a file that is missing or short makes no checkpoint",
                 "[unit][bucket]") {
  open();
  must_save(step_id(7));
  const auto found = std::ranges::find_if(server.objects, [](const auto& object) {
    return object.first.ends_with("rank-00001.safetensors");
  });
  REQUIRE(found != server.objects.end());
  if (GENERATE(true, false)) {
    found->second.pop_back();
  } else {
    server.objects.erase(found);
  }
  storage::CatalogOptions options;
  options.run = test_run;
  const auto catalog = must(storage::read_catalog(site, options));
  CHECK(catalog.checkpoints.empty());
  REQUIRE(catalog.rejected.size() == 1);
  CHECK(catalog.rejected[0].code == Errc::corruption);
}

}  // namespace ckpt::test
