// Goal:   callers ask for what they want, and need not know that a place is a bucket.
// Method: the operations of a StepAttempt and of a place on a server in memory.
#include <catch2/catch.hpp>

#include "storage/run_directory.hpp"
#include "storage/step_attempt.hpp"
#include "support/checkpoint_maker.hpp"
#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

namespace {

class SeamInBucket : public BucketFixture {
 public:
  storage::Site site{files, clock, "s3://bucket/run"};
};

}  // namespace

TEST_CASE_METHOD(SeamInBucket, "seam: an attempt in a bucket lies below its step",
                 "[unit][bucket]") {
  ShardWish wish;
  wish.at.timeline = 2;
  wish.at.step = Step{9};
  const MadeShard shard = make_shard(wish);
  const std::string name = ".step-000000009.t2.00000000000000aa";
  REQUIRE(storage::step_of_attempt(name) == wish.at);
  CHECK_FALSE(storage::step_of_attempt("step-000000009"));
  const storage::StepAttempt attempt(site, name);
  must(storage::begin(attempt));
  storage::ShardToWrite source{shard.record, shard.slot()};
  must(storage::put(attempt, source, storage::TransferHooks()));
  CHECK(server.objects.contains("run/step-000000009/t2.00000000000000aa/rank-00000.part"));
}

TEST_CASE_METHOD(SeamInBucket, "seam: a bucket shares no Chunks, is mounted nowhere, and answers",
                 "[unit][bucket]") {
  CHECK(storage::ChunkSharing::in(site, nullptr) == nullptr);
  const auto mounted = run(storage::mounted_at(site));
  REQUIRE_FALSE(mounted);
  CHECK(mounted.error().code() == Errc::unsupported);
  CHECK(storage::silence_of(site).empty());
}

}  // namespace ckpt::test
