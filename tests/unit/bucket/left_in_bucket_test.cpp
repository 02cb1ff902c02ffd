// Goal:   an attempt in a bucket counts as left when nothing of it is new by the server's clock.
// Method: attempts on a server in memory whose clock is set forward.
#include <catch2/catch.hpp>

#include "storage/left_attempts.hpp"
#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

namespace {

class LeftInBucket : public BucketFixture {
 public:
  std::vector<storage::LeftAttempt> listed() { return must(storage::list_attempts(site)); }
  bool is_left() {
    const auto found = listed();
    REQUIRE(found.size() == 1);
    return found.front().is_left;
  }

  storage::Site site{files, clock, "s3://bucket/run"};
  const std::string folder = "run/step-000000009/t1.00000000000000aa/";
};

}  // namespace

TEST_CASE_METHOD(LeftInBucket, "left in bucket: an hour without a new object makes one",
                 "[unit][bucket]") {
  server.objects[folder + "rank-00000.safetensors"] = "0123456789";
  server.objects["run/step-000000009/notes.txt"] = "foreign";
  server.objects["elsewhere/step-000000009/t1.00000000000000aa/rank-00000.part"] = "foreign";
  const auto found = listed();
  REQUIRE(found.size() == 1);
  CHECK(found[0].name == ".step-000000009.t1.00000000000000aa");
  CHECK(number(found[0].at.step) == 9);
  CHECK(found[0].bytes == 10);
  CHECK_FALSE(found[0].is_left);
  server.time = "Thu, 26 Nov 2026 07:37:09 GMT";
  CHECK_FALSE(is_left());
  server.time = "Thu, 26 Nov 2026 07:37:10 GMT";
  CHECK(is_left());
  server.written = "some day";
  CHECK_FALSE(is_left());
}

TEST_CASE_METHOD(LeftInBucket, "left in bucket: an upload may take a day", "[unit][bucket]") {
  server.uploads["u1"] = folder + "rank-00000.safetensors";
  server.time = "Fri, 27 Nov 2026 06:37:09 GMT";
  CHECK_FALSE(is_left());
  server.time = "Fri, 27 Nov 2026 06:37:10 GMT";
  CHECK(is_left());
  server.objects[folder + "rank-00001.part"] = "x";
  CHECK(is_left());
  server.written = "some day";
  CHECK_FALSE(is_left());
}

TEST_CASE_METHOD(LeftInBucket,
                 "left in bucket: an attempt beside an unreadable manifest is not listed",
                 "[unit][bucket]") {
  server.objects[folder + "rank-00000.safetensors"] = "0123456789";
  server.objects["run/step-000000009/manifest.json"] = "{";
  CHECK_FALSE(run(storage::list_attempts(site)).has_value());
}

}  // namespace ckpt::test
