// Goal:   what `storage` asks of buckets is kept by the servers in memory, in both dialects, as by
// a
//         real one.
// Method: the same cases for each: sizes around a part, conditions, versions, listings, uploads. A
//         real server is the one that CKPT_TEST_BUCKET names (tests/python/test_contract.py starts
//         it); without that variable it is left out.
#include "base/random.hpp"
#include "contract/bucket_under_test.hpp"

namespace ckpt::test {

namespace {

using os::Caching;
using os::EntryKind;
using os::PutCondition;
using os::PutMode;

std::vector<std::byte> noise(std::uint64_t bytes) {
  Random random(bytes + 1);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

WhichBucket any() {
  return GENERATE(WhichBucket::amazon_in_memory, WhichBucket::google_in_memory, WhichBucket::real);
}

}  // namespace

TEST_CASE("objects: a file is what was written, and its ranges too", "[contract][bucket]") {
  const WhichBucket which = any();
  if (!BucketUnderTest::is_there(which)) return;
  BucketUnderTest subject(which);
  constexpr std::uint64_t part = bucket::part_bytes_min;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, part - 1, part, part + 1}) {
    CAPTURE(bytes);
    const auto content = noise(bytes);
    const std::string path = subject.at("file");
    const auto file = subject.must(subject.all().create(path, Caching::direct));
    subject.must(file->allocate(bytes));
    const std::uint64_t half = bytes / 2;
    subject.must(file->write_at(half, std::span(content).subspan(half)));
    if (half > 0) subject.must(file->write_at(0, std::span(content).first(half)));
    subject.must(file->sync_data());
    subject.must(file->close());
    const auto status = subject.must(subject.all().status(path));
    CHECK(status.kind == EntryKind::file);
    CHECK(status.bytes == bytes);
    const auto opened = subject.must(subject.all().open_read(path, Caching::direct));
    std::vector<std::byte> found(bytes - half);
    subject.must(opened->read_at(half, found));
    CHECK(std::equal(found.begin(), found.end(), content.begin() + static_cast<long>(half)));
    found.resize(1);
    CHECK(subject.run(opened->read_at(bytes, found)).error().code() == Errc::corruption);
  }
}

TEST_CASE("objects: an object that was replaced is not the one that was opened",
          "[contract][bucket]") {
  const WhichBucket which = any();
  if (!BucketUnderTest::is_there(which)) return;
  BucketUnderTest subject(which);
  subject.must(subject.all().write_small(subject.at("a"), bytes_of("one")));
  const auto opened = subject.must(subject.all().open_read(subject.at("a"), Caching::direct));
  const PutCondition replace(PutMode::replace);
  subject.must(subject.objects().put_small(subject.at("a"), bytes_of("two"), replace));
  std::vector<std::byte> found(3);
  CHECK(subject.run(opened->read_at(0, found)).error().code() == Errc::corruption);
  CHECK(subject.read("a") == "two");
}

TEST_CASE("objects: conditions let one of two writers win", "[contract][bucket]") {
  const WhichBucket which = any();
  if (!BucketUnderTest::is_there(which)) return;
  BucketUnderTest subject(which);
  const std::string path = subject.at("b");
  const auto put = [&](const std::string& text, const PutCondition& condition) {
    return subject.run(subject.objects().put_small(path, bytes_of(text), condition));
  };
  const PutCondition absent(PutMode::if_absent);
  REQUIRE(put("one", absent));
  const Status second = put("two", absent);
  REQUIRE_FALSE(second);
  CHECK(second.error().cause() == std::errc::file_exists);
  const auto read = subject.must(subject.objects().read_tagged(path, 10));
  CHECK(text_of(read.bytes) == "one");
  const PutCondition unchanged(PutMode::if_unchanged, read.tag);
  REQUIRE(put("three", unchanged));
  const Status late = put("four", unchanged);
  REQUIRE_FALSE(late);
  CHECK(late.error().cause() == std::errc::file_exists);
  CHECK(subject.read("b") == "three");
  subject.must(subject.all().remove_file(path));
  const Status gone = put("five", unchanged);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().cause() == std::errc::file_exists);
}

TEST_CASE("objects: keys below a name are listed, and nothing else", "[contract][bucket]") {
  const WhichBucket which = any();
  if (!BucketUnderTest::is_there(which)) return;
  BucketUnderTest subject(which);
  for (const std::string name : {"d/x", "d/y z+&", "d/e/f/g", "dd"})
    subject.must(subject.all().write_small(subject.at(name), bytes_of(name)));
  std::vector<std::string> names;
  for (const os::DirectoryEntry& entry : subject.must(subject.all().list(subject.at("d"))))
    names.push_back(entry.name + (entry.kind == EntryKind::directory ? "/" : ""));
  CHECK(names == std::vector<std::string>{"e/", "x", "y z+&"});
  std::vector<std::string> deep;
  for (const os::ObjectEntry& entry : subject.must(subject.objects().list_below(subject.at("d")))) {
    deep.push_back(entry.name);
    CHECK(entry.bytes == entry.name.size() + 2);
    REQUIRE(entry.age.has_value());
    CHECK(*entry.age < std::chrono::hours(1));
  }
  CHECK(deep == std::vector<std::string>{"e/f/g", "x", "y z+&"});
  CHECK(subject.must(subject.all().status(subject.at("d"))).kind == EntryKind::directory);
  CHECK(subject.run(subject.all().status(subject.at("none"))).error().code() == Errc::not_found);
  subject.must(subject.all().remove_file(subject.at("d/x")));
  subject.must(subject.all().remove_file(subject.at("d/x")));
  CHECK(subject.run(subject.all().read_small(subject.at("d/x"), 10)).error().code() ==
        Errc::not_found);
}

TEST_CASE("objects: an upload that is not complete is no object, and can be ended",
          "[contract][bucket]") {
  const WhichBucket which = any();
  if (!BucketUnderTest::is_there(which)) return;
  BucketUnderTest subject(which);
  const auto content = noise(bucket::part_bytes_min + 1);
  auto file = subject.must(subject.all().create(subject.at("u/file"), Caching::direct));
  subject.must(file->allocate(content.size()));
  subject.must(file->write_at(0, std::span(content).first(bucket::part_bytes_min)));
  CHECK(subject.run(subject.all().status(subject.at("u/file"))).error().code() == Errc::not_found);
  const auto uploads = subject.must(subject.objects().list_uploads_below(subject.at("u")));
  REQUIRE(uploads.size() == 1);
  CHECK(uploads[0].name == "file");
  subject.must(subject.objects().abort_upload(subject.at("u/file"), uploads[0].id));
  subject.must(subject.objects().abort_upload(subject.at("u/file"), uploads[0].id));
  CHECK(subject.must(subject.objects().list_uploads_below(subject.at("u"))).empty());
  const Status late = subject.run(
      file->write_at(bucket::part_bytes_min, std::span(content).subspan(bucket::part_bytes_min)));
  CHECK_FALSE(late);
  file.reset();
}

}  // namespace ckpt::test
