// Goal:   gs:// paths are kept by Google's own conditions, and never by those that it ignores.
// Method: a server in memory that speaks Google's dialect as its documents have it, and refuses
//         Amazon's words.
#include <catch2/catch.hpp>

#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

namespace {

using os::PutCondition;
using os::PutMode;

class GoogleFixture : public BucketFixture {
 public:
  GoogleFixture() { server.is_google = true; }
  bucket::BucketFileSystem there{client_of(server, clock, bucket::Scheme::gs)};
  const std::string path = "gs://bucket/a";
};

}  // namespace

TEST_CASE_METHOD(GoogleFixture, "google: an object reads back as it was put", "[unit][bucket]") {
  const std::size_t bytes = GENERATE(0, 1, 100'000);
  const std::string content(bytes, 'x');
  must(there.write_small("gs://bucket/a/b", bytes_of(content)));
  CHECK(text_of(must(there.read_small("gs://bucket/a/b", bytes))) == content);
  CHECK(must(there.list("gs://bucket/a")).size() == 1);
  must(there.remove_file("gs://bucket/a/b"));
  must(there.remove_file("gs://bucket/a/b"));  // Google says that it is missing.
  CHECK(run(there.status("gs://bucket/a/b")).error().code() == Errc::not_found);
  CHECK_THAT(run(there.status("gs://bucket/a/b")).error().message(),
             Catch::Contains("gs://bucket/a/b"));
}

TEST_CASE_METHOD(GoogleFixture, "google: a condition lets one of two writers win",
                 "[unit][bucket]") {
  const PutCondition absent(PutMode::if_absent);
  must(there.put_small(path, bytes_of("one"), absent));
  const Status second = run(there.put_small(path, bytes_of("two"), absent));
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().cause() == std::errc::file_exists);
  const auto read = must(there.read_tagged(path, 10));
  const PutCondition unchanged(PutMode::if_unchanged, read.tag);
  must(there.put_small(path, bytes_of("three"), unchanged));
  const Status late = run(there.put_small(path, bytes_of("four"), unchanged));
  CHECK(late.error().cause() == std::errc::file_exists);
  CHECK(server.objects["a"] == "three");
}

TEST_CASE_METHOD(GoogleFixture, "google: a range is of the object that was opened",
                 "[unit][bucket]") {
  server.objects["a"] = "0123456789";
  const auto file = must(there.open_read(path, os::Caching::direct));
  std::vector<std::byte> bytes(4);
  must(file->read_at(2, bytes));
  CHECK(text_of(bytes) == "2345");
  server.objects["a"] = "9876543210";
  CHECK(run(file->read_at(2, bytes)).error().code() == Errc::corruption);
}

TEST_CASE_METHOD(GoogleFixture, "google: an upload in parts is one object", "[unit][bucket]") {
  const std::vector<std::byte> content(bucket::part_bytes_min + 5, std::byte{7});
  const auto file = must(there.create(path, os::Caching::direct));
  must(file->allocate(content.size()));
  must(file->write_at(0, content));
  must(file->sync_data());
  CHECK(server.objects["a"].size() == content.size());
  CHECK(server.uploads.empty());
}

TEST_CASE_METHOD(GoogleFixture, "google: Amazon's dialect is refused there", "[unit][bucket]") {
  const PutCondition absent(PutMode::if_absent);
  CHECK_FALSE(run(files.put_small("s3://bucket/a", bytes_of("one"), absent)).has_value());
  CHECK(server.objects.empty());
}

}  // namespace ckpt::test
