// Goal:   a repair makes a damaged checkpoint what it was, or leaves it as it is; it touches
// nothing
//         that is good, and lets in nothing that the manifest does not seal.
// Method: two copies of one checkpoint on a disk and in buckets in memory; each kind of damage, in
//         one or both of them; every operation of the disk failing once.
#include "storage/repair.hpp"

#include "storage/rewrite.hpp"
#include "unit/bucket/copy_scene.hpp"

namespace ckpt::test {

namespace {

using Names = std::vector<std::string>;

class RepairScene : public CopyInBucket {
 public:
  // Two copies: `source` is damaged, and repaired from `target`.
  void make_copies(const std::string& one, const std::string& other) {
    source = storage::Site(*all, clock, one);
    target = storage::Site(*all, clock, other);
    save_source({1, 2});
    must_copy(2);
  }
  std::string path_of(const storage::Site& site, const std::string& name) {
    const auto manifest = must(storage::read_manifest(site, "step-000000002"));
    const std::string directory =
        storage::shard_directory(site.at("step-000000002"), manifest->shards.at(1));
    return os::join(directory, name);
  }
  // The content of a file, wherever it lies.
  std::string& content(const storage::Site& site, const std::string& name) {
    const auto place = bucket::parse_bucket_path(path_of(site, name));
    REQUIRE(place);
    return (place->scheme == bucket::Scheme::gs ? google : server).objects[place->key];
  }
  std::string text(const storage::Site& site, const std::string& name) {
    return text_of(must(all->read_small(path_of(site, name), std::uint64_t{1} << 24)));
  }
  void write(const storage::Site& site, const std::string& name,
             const std::optional<std::string>& changed) {
    if (site.objects() != nullptr) {
      if (changed) {
        content(site, name) = *changed;
      } else {
        must(all->remove_file(path_of(site, name)));
      }
      return;
    }
    must(all->remove_file(path_of(site, name)));
    if (changed) must(all->write_small(path_of(site, name), bytes_of(*changed)));
  }
  void flip(const storage::Site& site, const std::string& name, std::size_t from_end) {
    std::string changed = text(site, name);
    changed[changed.size() - from_end] ^= 1;
    write(site, name, changed);
  }
  Result<Names> run_repair(storage::RepairOrder order) {
    const storage::StepIn damaged{source, "step-000000002"}, copy{target, "step-000000002"};
    return run(storage::repair_checkpoint(damaged, copy, std::move(order)));
  }
  Result<Names> try_repair() {
    storage::RepairOrder order;
    order.attempt = ++attempts;
    return run_repair(std::move(order));
  }
  bool is_good() {
    const auto report = run(storage::verify_checkpoint(*all, source.at("step-000000002")));
    return report && report->is_good() && report->foreign.empty();
  }
};

Task<void> answer_to(bool is_allowed) {
  if (!is_allowed) co_return fail(Errc::cancelled, "no more bytes may be moved");
  co_return Status();
}

constexpr const char* member = "rank-00001.safetensors";
constexpr const char* part = "rank-00001.part";

}  // namespace

TEST_CASE_METHOD(RepairScene, "repair: damaged files become what they were, from a copy elsewhere",
                 "[unit][bucket]") {
  const auto [one, other] = GENERATE(table<std::string, std::string>({
      {"/scratch/job", "/scratch/copy"},
      {"/scratch/job", "s3://bucket/copy"},
      {"s3://bucket/job", "/scratch/copy"},
      {"gs://bucket/job", "s3://bucket/copy"},
  }));
  CAPTURE(one, other);
  make_copies(one, other);
  const std::string whole = text(source, member), whole_part = text(source, part);
  Names damaged{member};
  SECTION("a flipped byte") {
    flip(source, member, 1);
  }
  SECTION("a short file") {
    write(source, member, whole.substr(0, whole.size() - 1));
  }
  SECTION("a missing file") {
    write(source, member, std::nullopt);
  }
  SECTION("a flipped byte of the part") {
    flip(source, part, 1);
    damaged = {part};
  }
  SECTION("all that the rank has") {
    write(source, member, std::nullopt);
    write(source, part, std::nullopt);
    damaged = {part, member};
  }
  REQUIRE_FALSE(is_good());
  const auto repaired = try_repair();
  REQUIRE((repaired ? "" : repaired.error().message()) == "");
  CHECK(*repaired == damaged);
  CHECK(is_good());
  CHECK(text(source, member) == whole);
  CHECK(text(source, part) == whole_part);
  CHECK(try_repair()->empty());
}

TEST_CASE_METHOD(RepairScene, "repair: a compressed file comes whole from a copy elsewhere",
                 "[unit][bucket]") {
  const auto [one, other] = GENERATE(table<std::string, std::string>({
      {"/scratch/job", "/scratch/copy"},
      {"s3://bucket/job", "/scratch/copy"},
      {"/scratch/job", "s3://bucket/copy"},
  }));
  CAPTURE(one, other);
  compression = storage::Compression{};
  make_copies(one, other);
  const std::string packed = format::packed_name(member);
  const std::string whole = text(source, packed);
  flip(source, packed, whole.size() / 2);
  REQUIRE_FALSE(is_good());
  const auto repaired = try_repair();
  REQUIRE((repaired ? "" : repaired.error().message()) == "");
  CHECK(*repaired == Names{packed});
  CHECK(is_good());
  CHECK(text(source, packed) == whole);
}

TEST_CASE_METHOD(RepairScene, "repair: files in a bucket are written anew from memory, too",
                 "[unit][bucket]") {
  compression = GENERATE(std::optional<storage::Compression>(),
                         std::optional<storage::Compression>(storage::Compression{}));
  make_copies("s3://bucket/job", "/scratch/copy");
  const std::string name = compression ? format::packed_name(member) : member;
  const std::string whole = text(source, name), whole_part = text(source, part);
  flip(source, name, whole.size() - 9);
  SECTION("and the part stays") {}
  SECTION("and the part") {
    flip(source, part, 1);
  }
  REQUIRE_FALSE(is_good());
  storage::ShardToWrite from = source_of(make_rank(step_id(2), 1), compression);
  from.turn = 77;
  const storage::TransferHooks hooks;
  const Status written = run(storage::rewrite_shard(source, "step-000000002", from, hooks));
  REQUIRE((written ? "" : written.error().message()) == "");
  CHECK(is_good());
  CHECK(text(source, name) == whole);
  CHECK(text(source, part) == whole_part);
}

TEST_CASE_METHOD(RepairScene, "repair: each copy serves the chunks that are good in it",
                 "[unit][bucket]") {
  make_copies("/scratch/job", "s3://bucket/copy");
  const std::string whole = text(source, member);
  flip(source, member, 1);
  flip(target, member, whole.size() / 2);
  REQUIRE(try_repair());
  CHECK(is_good());
  CHECK(text(source, member) == whole);
}

TEST_CASE_METHOD(RepairScene, "repair: a file that no copy has is left as it is, and the rest too",
                 "[unit][bucket]") {
  const std::string one = GENERATE("/scratch/job", "s3://bucket/job");
  make_copies(one, "s3://bucket/copy");
  flip(source, member, 1);
  flip(target, member, 1);
  flip(source, part, 1);  // This one could be repaired.
  const std::string damaged = text(source, member), damaged_part = text(source, part);
  const auto repaired = try_repair();
  REQUIRE_FALSE(repaired);
  CHECK(repaired.error().code() == Errc::corruption);
  CHECK(text(source, member) == damaged);
  CHECK(text(source, part) == damaged_part);
  const auto report = must(storage::verify_checkpoint(*all, source.at("step-000000002")));
  CHECK(report.foreign.empty());
  CHECK(server.uploads.empty());
}

TEST_CASE_METHOD(RepairScene, "repair: another checkpoint is no source", "[unit][bucket]") {
  make_copies("/scratch/job", "/scratch/copy");
  flip(source, member, 1);
  storage::RepairOrder order;
  const storage::StepIn damaged{source, "step-000000002"}, other{source, "step-000000001"};
  const auto repaired = run(storage::repair_checkpoint(damaged, other, order));
  REQUIRE_FALSE(repaired);
  CHECK(repaired.error().code() == Errc::invalid_argument);
}

TEST_CASE_METHOD(RepairScene, "repair: whichever operation fails, no good file gets worse",
                 "[unit][bucket]") {
  make_copies("/scratch/job", "/scratch/copy");
  const std::string whole = text(source, member), whole_part = text(source, part);
  bool has_failed = true;
  for (int failing = 0; has_failed; ++failing) {
    CAPTURE(failing);
    flip(source, member, 1);
    const std::string damaged = text(source, member);
    int count = 0;
    has_failed = false;
    disk.set_hook([&](std::string_view, const std::string&) {
      if (count++ != failing) return 0;
      has_failed = true;
      return failing % 2 == 0 ? ENOSPC : EIO;
    });
    const auto repaired = try_repair();
    disk.set_hook(nullptr);
    CHECK(text(source, part) == whole_part);
    const std::string now = text(source, member);
    CHECK((now == whole || now == damaged));
    if (repaired && !repaired->empty()) CHECK(now == whole);
    REQUIRE(try_repair());
    CHECK(text(source, member) == whole);
    REQUIRE(failing < 500);
  }
}

TEST_CASE_METHOD(RepairScene, "repair: a checkpoint that was saved again meanwhile is not touched",
                 "[unit][bucket]") {
  make_copies("/scratch/job", "/scratch/copy");
  flip(source, member, 1);
  bool is_saved = false;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    // The new file is whole; the checkpoint is another one by now.
    if (is_saved || verb != "sync_data" || path.find("safetensors.t") == std::string::npos)
      return 0;
    is_saved = true;
    must(save_step(step_id(2, 2)));
    return 0;
  });
  const auto repaired = try_repair();
  disk.set_hook(nullptr);
  REQUIRE(is_saved);
  REQUIRE_FALSE(repaired);
  CHECK(repaired.error().code() == Errc::unavailable);
  CHECK(must(storage::read_manifest(source, "step-000000002"))->at == step_id(2, 2));
  CHECK(is_good());
}

TEST_CASE_METHOD(RepairScene, "repair: it asks before it moves bytes, and ends where it is refused",
                 "[unit][bucket]") {
  make_copies("/scratch/job", "s3://bucket/copy");
  const std::string whole = text(source, member);
  std::uint64_t asked = 0, allowed = 0;
  const auto repair_within = [&](std::uint64_t bytes) {
    asked = 0;
    allowed = bytes;
    storage::RepairOrder order;
    order.attempt = ++attempts;
    order.hooks.before_transfer = [&](std::uint64_t more) {
      asked += more;
      return answer_to(asked <= allowed);
    };
    return run_repair(std::move(order));
  };
  REQUIRE(repair_within(UINT64_MAX));
  const std::uint64_t verified = asked;
  CHECK(verified > whole.size());  // All files of the checkpoint.
  flip(source, member, 1);
  const std::string damaged = text(source, member);
  REQUIRE(repair_within(UINT64_MAX));
  CHECK(text(source, member) == whole);
  const std::uint64_t needed = asked;
  CHECK(needed >= verified + whole.size());

  flip(source, member, 1);
  for (const std::uint64_t bytes : {std::uint64_t{0}, needed / 2, needed - 1}) {
    const auto refused = repair_within(bytes);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::cancelled);
    CHECK(text(source, member) == damaged);
  }
}

}  // namespace ckpt::test
