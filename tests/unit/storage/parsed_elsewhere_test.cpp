// Goal:   manifests and parts are parsed and built on the Compute, since a large one would hold up
//         all that the calling thread has to decide.
// Method: with a Compute that refuses all work nothing is read or published; with one that counts,
//         each is done there.
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

struct OtherThreads final : Compute {
  Task<void> run(std::function<void()> work) override {
    if (is_refusing) co_return fail(Errc::exhausted, "too much waits already");
    ++runs;
    work();
    co_return Status();
  }
  bool is_refusing = false;
  std::size_t runs = 0;
};

struct Elsewhere : StorageFixture {
  Elsewhere() { site = storage::Site(files, clock, "/scratch/job", &threads); }
  OtherThreads threads;
};

}  // namespace

TEST_CASE_METHOD(Elsewhere, "parsed elsewhere: a manifest that is read", "[unit][storage]") {
  open();
  must_save(step_id(1));
  threads.runs = 0;
  REQUIRE(run(storage::read_manifest(site, "step-000000001")));
  CHECK(threads.runs == 1);
  REQUIRE(catalog().checkpoints.size() == 1);
  CHECK(threads.runs == 3);  // Its text is parsed there, too.
  threads.is_refusing = true;
  const auto read = run(storage::read_manifest(site, "step-000000001"));
  REQUIRE_FALSE(read);
  CHECK(read.error().code() == Errc::exhausted);
}

TEST_CASE_METHOD(Elsewhere, "parsed elsewhere: a part that is written, and one that is read",
                 "[unit][storage]") {
  open();
  must_save(step_id(1));
  const std::string directory = site.at("step-000000001");
  const auto manifest = run(storage::read_manifest(site, "step-000000001"));
  threads.runs = 0;
  REQUIRE(run(storage::read_part(files, directory, *manifest, 0, &threads)));
  CHECK(threads.runs == 1);
  storage::TransferHooks hooks;
  hooks.compute = &threads;
  const MadeShard shard = make_rank(step_id(2), 0);
  threads.runs = 0;
  REQUIRE(run(storage::write_shard(files, source_of(shard), "/scratch", hooks)));
  const std::size_t checksums = threads.runs - 1;
  CHECK(checksums >= shard.record->chunk_crcs.size());
}

TEST_CASE_METHOD(Elsewhere, "parsed elsewhere: a manifest that is built", "[unit][storage]") {
  open();
  must_save(step_id(1));
  CHECK(threads.runs == 1);
  threads.is_refusing = true;
  const auto published = try_save(step_id(2));
  REQUIRE_FALSE(published);
  CHECK(published.error().code() == Errc::exhausted);
  threads.is_refusing = false;
  CHECK(whole_steps() == std::vector{step_id(1)});
}

}  // namespace ckpt::test
