// Goal:   requests survive what passes, and no answer that is not whole is taken for one.
// Method: a server in memory breaks connections, replaces objects between requests,
//         and carries out what it then says nothing of.
#include <catch2/catch.hpp>

#include "bucket/retry.hpp"
#include "storage/catalog.hpp"
#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

using os::PutCondition;
using os::PutMode;

TEST_CASE_METHOD(BucketFixture, "client: an object reads back as it was put", "[unit][bucket]") {
  const std::size_t bytes = GENERATE(0, 1, 4096, 100'000);
  const std::string content(bytes, 'x');
  must(files.write_small("s3://bucket/a/b", bytes_of(content)));
  REQUIRE(text_of(must(files.read_small("s3://bucket/a/b", bytes))) == content);
  const auto status = must(files.status("s3://bucket/./a/b"));
  CHECK(status.kind == os::EntryKind::file);
  CHECK(status.bytes == bytes);
}

TEST_CASE_METHOD(BucketFixture, "client: a missing or too long object says so", "[unit][bucket]") {
  server.objects["long"] = "12345";
  CHECK(run(files.read_small("s3://bucket/none", 10)).error().code() == Errc::not_found);
  CHECK(run(files.status("s3://bucket/none")).error().code() == Errc::not_found);
  CHECK(run(files.open_read("s3://bucket/none", os::Caching::direct)).error().code() ==
        Errc::not_found);
  CHECK(run(files.read_small("s3://bucket/long", 4)).error().code() == Errc::exhausted);
  CHECK(run(files.rename("s3://bucket/long", "s3://bucket/b", os::RenameMode::replace))
            .error()
            .code() == Errc::unsupported);
}

TEST_CASE_METHOD(BucketFixture, "client: a condition lets one of two writers win",
                 "[unit][bucket]") {
  const PutCondition absent(PutMode::if_absent);
  must(files.put_small("s3://bucket/a", bytes_of("one"), absent));
  const Status second = run(files.put_small("s3://bucket/a", bytes_of("two"), absent));
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code() == Errc::invalid_argument);
  CHECK(second.error().cause() == std::errc::file_exists);
  const auto read = must(files.read_tagged("s3://bucket/a", 10));
  must(files.put_small("s3://bucket/a", bytes_of("three"),
                       PutCondition(PutMode::if_unchanged, read.tag)));
  const Status late = run(files.put_small("s3://bucket/a", bytes_of("four"),
                                          PutCondition(PutMode::if_unchanged, read.tag)));
  CHECK(late.error().cause() == std::errc::file_exists);
  server.objects.clear();
  const Status gone = run(files.put_small("s3://bucket/a", bytes_of("five"),
                                          PutCondition(PutMode::if_unchanged, read.tag)));
  CHECK(gone.error().cause() == std::errc::file_exists);
}

TEST_CASE_METHOD(BucketFixture, "client: a put whose answer was lost has not lost against itself",
                 "[unit][bucket]") {
  int losses = 1;
  server.after = [&](const bucket::Request& request, Result<bucket::Response>& response) {
    if (request.method == "PUT" && losses-- > 0) response = MemoryServer::broken();
  };
  const PutCondition absent(PutMode::if_absent);
  SECTION("its own bytes are there") {
    must(files.put_small("s3://bucket/a", bytes_of("ours"), absent));
    CHECK(count_of("PUT") == 2);
  }
  SECTION("those of another writer are there") {
    server.before = [&](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
      if (losses == 1) server.objects["a"] = "them";
      return std::nullopt;
    };
    const Status put = run(files.put_small("s3://bucket/a", bytes_of("ours"), absent));
    CHECK(put.error().cause() == std::errc::file_exists);
    CHECK(server.objects["a"] == "them");
  }
}

TEST_CASE_METHOD(BucketFixture, "client: trouble that passes is waited for, and other trouble not",
                 "[unit][bucket]") {
  server.objects["a"] = "content";
  int failures = 3;
  int status = 503;
  server.before = [&](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
    if (failures-- <= 0) return std::nullopt;
    return status == 0 ? MemoryServer::broken() : MemoryServer::error(status, "Trouble");
  };
  const Time began = clock.now();
  SECTION("an overloaded server") {
    REQUIRE(must(files.read_small("s3://bucket/a", 10)).size() == 7);
    CHECK(clock.now() > began);
  }
  SECTION("a broken connection") {
    status = 0;
    REQUIRE(must(files.read_small("s3://bucket/a", 10)).size() == 7);
  }
  SECTION("it does not pass") {
    failures = 1000;
    const auto read = run(files.read_small("s3://bucket/a", 10));
    CHECK(read.error().code() == Errc::io);
    CHECK(server.log.size() == 8);
  }
  SECTION("nobody may read it") {
    status = 403;
    failures = 1000;
    const auto read = run(files.read_small("s3://bucket/a", 10));
    CHECK(read.error().code() == Errc::io);
    CHECK(read.error().text().find("the environment") != std::string::npos);
    CHECK(server.log.size() == 1);
  }
}

TEST_CASE_METHOD(BucketFixture, "client: a server that never answers is given up after three tries",
                 "[unit][bucket]") {
  server.before = [](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
    return Result<bucket::Response>(
        fail(Errc::unavailable, "nothing moved", std::make_error_code(std::errc::timed_out)));
  };
  const auto read = run(files.status("s3://bucket/a"));
  REQUIRE_FALSE(read.has_value());
  CHECK(read.error().code() == Errc::io);
  CHECK_THAT(read.error().message(), Catch::Contains("nothing moved"));
  CHECK(server.log.size() == bucket::stalls_max);
  CHECK(read.error().cause() == std::errc::timed_out);

  // Nor does a catalog begin anew.
  server.log.clear();
  const storage::Site site(files, clock, "s3://bucket/run");
  CHECK_FALSE(run(storage::read_catalog(site, storage::CatalogOptions())).has_value());
  CHECK(server.log.size() == bucket::stalls_max);
}

TEST_CASE_METHOD(BucketFixture,
                 "client: a server that never answered is given up sooner if so told",
                 "[unit][bucket]") {
  bucket::Patience patience;
  patience.first_tries_max = 3;
  bucket::BucketFileSystem impatient(client_of(server, clock, bucket::Scheme::s3, patience));
  bool is_there = false;
  server.before = [&](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
    if (is_there) return std::nullopt;
    return MemoryServer::broken();
  };
  const auto first = run(impatient.status("s3://bucket/a"));
  REQUIRE_FALSE(first.has_value());
  CHECK(server.log.size() == 3);
  CHECK(first.error().cause() == std::errc::not_connected);  // Nobody begins anew.
  CHECK_THAT(first.error().message(),
             Catch::Contains("3 tries failed") && Catch::Contains("names an endpoint"));
  is_there = true;
  CHECK(run(impatient.status("s3://bucket/a")).error().code() == Errc::not_found);
  is_there = false;
  server.log.clear();
  const auto later = run(impatient.status("s3://bucket/a"));
  CHECK(server.log.size() == bucket::tries_max);
  CHECK_FALSE(later.error().cause());
}

TEST_CASE_METHOD(BucketFixture, "client: after an interruption nothing is tried again",
                 "[unit][bucket]") {
  bool is_interrupted = false;
  bucket::Patience patience;
  patience.is_interrupted = [&] { return is_interrupted; };
  bucket::BucketFileSystem files_of_tool(client_of(server, clock, bucket::Scheme::s3, patience));
  server.before = [&](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
    is_interrupted = server.log.size() >= 2;
    return MemoryServer::error(503, "SlowDown");
  };
  const auto read = run(files_of_tool.status("s3://bucket/a"));
  REQUIRE_FALSE(read.has_value());
  CHECK(read.error().code() == Errc::cancelled);
  CHECK(server.log.size() == 2);
  // A request that tidies up afterwards is tried once.
  server.before = nullptr;
  CHECK(run(files_of_tool.status("s3://bucket/a")).error().code() == Errc::not_found);
}

namespace {

std::vector<std::string> said;  // The lines of the log: a sink is a plain function.
void note_line(LogLevel level, std::string_view line) {
  if (level == LogLevel::warning) said.emplace_back(line);
}

}  // namespace

TEST_CASE_METHOD(BucketFixture, "client: a server that does not answer is named after two seconds",
                 "[unit][bucket]") {
  bucket::Patience patience;
  patience.silence_level = LogLevel::warning;
  bucket::BucketFileSystem impatient(client_of(server, clock, bucket::Scheme::s3, patience));
  said.clear();
  Log::set_sink(note_line);
  SECTION("while it fails at once") {
    server.before = [this](const bucket::Request&) {
      clock.advance(std::chrono::seconds(1));  // The random pauses alone may be too short.
      return MemoryServer::broken();
    };
    (void)run(impatient.status("s3://bucket/a"));
    REQUIRE(said.size() == 1);
    CHECK_THAT(said[0], Catch::Contains("no answer from") && Catch::Contains("of 8 tries"));
  }
  SECTION("while a request hangs") {
    server.before = [](const bucket::Request& request) -> std::optional<Result<bucket::Response>> {
      const std::size_t before = said.size();
      CHECK_FALSE(request.on_silence(std::chrono::milliseconds(1999)));
      CHECK(said.size() == before);
      CHECK_FALSE(request.on_silence(std::chrono::milliseconds(2000)));
      CHECK_FALSE(request.on_silence(std::chrono::milliseconds(3000)));
      return std::nullopt;
    };
    (void)run(impatient.status("s3://bucket/a"));
    REQUIRE(said.size() == 1);  // Of two requests.
    CHECK_THAT(said[0], Catch::Contains("look at s3://bucket/a: no answer from"));
  }
  SECTION("and not for one short failure") {
    server.before = [&](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
      if (server.log.size() > 1) return std::nullopt;
      return MemoryServer::broken();
    };
    (void)run(impatient.status("s3://bucket/a"));
    CHECK(said.empty());
  }
  Log::set_sink(nullptr);
}

TEST_CASE_METHOD(BucketFixture,
                 "client: who asks hears what is tried again, until there is an answer",
                 "[unit][bucket]") {
  // A program asks while requests are under way: here, before each of their tries.
  std::vector<std::pair<Time, std::string>> heard;
  const Time began = clock.now();
  int failures = 1000;
  server.before = [&](const bucket::Request& request) -> std::optional<Result<bucket::Response>> {
    heard.emplace_back(clock.now(), files.silence("s3://bucket/a"));
    clock.advance(std::chrono::seconds(1));  // The random pauses alone may be too short.
    if (failures == 0) CHECK_FALSE(request.on_silence(std::chrono::milliseconds(3000)));
    if (failures-- <= 0) return std::nullopt;
    return MemoryServer::broken();
  };
  server.objects["a"] = "content";
  SECTION("when it fails, too") {
    CHECK_FALSE(run(files.read_small("s3://bucket/a", 10)));
    CHECK_FALSE(files.silence("s3://bucket/a").empty());
    CHECK(files.silence("s3://bucket/b").empty());
    const std::size_t before = heard.size();
    failures = 1;  // The next one: the server has been silent all the time.
    CHECK(run(files.list("s3://bucket/b")));
    CHECK_FALSE(heard.at(before + 1).second.empty());
  }
  SECTION("until it is answered") {
    failures = 7;
    CHECK(run(files.read_small("s3://bucket/a", 10)));
  }
  CHECK(files.silence("s3://bucket/a").empty());
  REQUIRE(heard.size() >= 8);
  heard.resize(8);  // Those of the first request.
  for (const auto& [when, text] : heard) {
    const bool is_long = when - began >= std::chrono::seconds(5);
    CHECK(text.empty() == !is_long);
    if (is_long) {
      CHECK_THAT(text,
                 Catch::Contains("s3://bucket/a: no answer from") && Catch::Contains(", for "));
    }
  }
  clock.advance(std::chrono::minutes(1));
  CHECK(files.silence("s3://bucket/a").empty());
}

TEST_CASE("silent requests: the oldest one that has trouble is named", "[unit][bucket]") {
  const auto shared = std::make_shared<bucket::SilentRequests>();
  bucket::SilentRequests& all = *shared;
  const auto told = [&](std::string_view place, int second) {
    return all.describe(place, Time{} + std::chrono::seconds(second));
  };
  CHECK(told("s3://b/k", 3600).empty());
  bucket::SilentRequests::Request fine(shared, "s3://b/k/0", Time{});
  bucket::SilentRequests::Request first(shared, "s3://b/k/1", Time{});
  bucket::SilentRequests::Request second(shared, "s3://b/k/2", Time{} + std::chrono::seconds(2));
  second.note("second", Time{} + std::chrono::seconds(6));
  CHECK(told("s3://b/k", 6).empty());
  CHECK(told("s3://b/k", 7) == "second, for 5 s");
  first.note("first", Time{} + std::chrono::seconds(13));
  CHECK(told("s3://b/k", 14) == "first, for 10 s");
  CHECK(told("s3://b/k/2", 14) == "second, for 10 s");
  CHECK(told("s3://b", 14) == "first, for 10 s");
  bucket::SilentRequests::Request third(shared, "s3://b/run-20/1", Time{});
  third.note("third", Time{} + std::chrono::seconds(14));
  for (const char* other : {"s3://b/k2", "s3://b/run-2"}) CHECK(told(other, 14).empty());
}

TEST_CASE("silent requests: one that failed is told until the server answers any",
          "[unit][bucket]") {
  const auto shared = std::make_shared<bucket::SilentRequests>();
  const auto at = [](int second) { return Time{} + std::chrono::seconds(second); };
  const auto told = [&](int second) { return shared->describe("s3://b/k", at(second)); };
  {
    bucket::SilentRequests::Request other(shared, "s3://b/other", at(0));
    other.note("other", at(8));
    bucket::SilentRequests::Request failed(shared, "s3://b/k/1", at(0));
    failed.note("failed", at(8));
  }
  REQUIRE(told(9) == "failed, for 5 s");
  auto again = std::make_unique<bucket::SilentRequests::Request>(shared, "s3://b/k/2", at(10));
  REQUIRE(told(11) == "failed, for 10 s");
  again->note("again", at(12));
  REQUIRE(told(12) == "again, for 10 s");
  SECTION("answered") {
    again->answered();
    CHECK(told(13).empty());
    again.reset();
    CHECK(told(20).empty());
    bucket::SilentRequests::Request later(shared, "s3://b/k/3", at(30));
    later.note("later", at(33));
    CHECK(told(34).empty());  // It counts from its own beginning.
    CHECK(told(35) == "later, for 5 s");
  }
  SECTION("nobody asks it any more") {
    again.reset();
    CHECK(told(13) == "again, for 10 s");
    CHECK(told(101) == "again, for 100 s");
    CHECK(told(102).empty());
  }
}

TEST_CASE("silent requests: one that failed and that nobody asks for is forgotten",
          "[unit][bucket]") {
  const auto shared = std::make_shared<bucket::SilentRequests>();
  const auto at = [](int second) { return Time{} + std::chrono::seconds(second); };
  {
    bucket::SilentRequests::Request failed(shared, "s3://b/ended", at(0));
    failed.note("failed", at(8));
  }
  bucket::SilentRequests::Request other(shared, "s3://b/k", at(97));
  other.note("other", at(98));
  CHECK(shared->describe("s3://b/k", at(99)).empty());  // It counts from its own beginning.
  CHECK(shared->describe("s3://b/k", at(102)) == "other, for 5 s");
}

TEST_CASE("silent requests: only the last failures are remembered", "[unit][bucket]") {
  const auto shared = std::make_shared<bucket::SilentRequests>();
  const Time later = Time{} + std::chrono::seconds(10);
  for (int i = 0; i < 33; ++i) {
    const std::string place = "s3://b/k/" + std::to_string(i);
    bucket::SilentRequests::Request(shared, place, Time{}).note("it failed", later);
  }
  CHECK(shared->describe("s3://b/k/0", later).empty());
  CHECK(shared->describe("s3://b/k/1", later) == "it failed, for 10 s");
}

TEST_CASE("silent requests: one that outlives their owner still notes and ends", "[unit][bucket]") {
  auto owner = std::make_shared<bucket::SilentRequests>();
  const std::weak_ptr<bucket::SilentRequests> seen = owner;
  auto suspended = std::make_unique<bucket::SilentRequests::Request>(owner, "s3://b/k", Time{});
  owner.reset();
  suspended->note("nobody answers", Time{} + std::chrono::seconds(6));
  REQUIRE(seen.lock());
  CHECK(seen.lock()->describe("s3://b/k", Time{} + std::chrono::seconds(6)) ==
        "nobody answers, for 5 s");
  suspended.reset();
  CHECK(seen.expired());
}

TEST_CASE_METHOD(BucketFixture, "client: a clock that is off is corrected by the server's",
                 "[unit][bucket]") {
  std::vector<std::string> dates;
  server.before = [&](const bucket::Request& request) -> std::optional<Result<bucket::Response>> {
    for (const auto& header : request.headers)
      if (header.name == "x-amz-date") dates.push_back(header.value);
    if (dates.back() == "20261126T063710Z") return std::nullopt;
    auto answer = MemoryServer::error(403, "RequestTimeTooSkewed");
    answer.headers.push_back({"date", server.time});
    return answer;
  };
  server.objects["a"] = "x";
  REQUIRE(must(files.read_small("s3://bucket/a", 10)).size() == 1);
  REQUIRE(dates.size() == 3);
}

TEST_CASE_METHOD(BucketFixture, "client: keys that are refused again and again are given up",
                 "[unit][bucket]") {
  server.before = [](const bucket::Request&) -> std::optional<Result<bucket::Response>> {
    return MemoryServer::error(403, "ExpiredToken");
  };
  const auto read = run(files.list("s3://bucket/a"));
  CHECK(read.error().code() == Errc::io);
  CHECK(read.error().text().find("ExpiredToken") != std::string::npos);
  CHECK(server.log.size() == 3);
}

TEST_CASE_METHOD(BucketFixture, "client: a listing takes all its pages", "[unit][bucket]") {
  server.page_keys_max = 2;
  for (const char* key : {"run/a", "run/b/1", "run/b/2", "run/c", "run/d/e/f", "other"})
    server.objects[key] = "x";
  const auto entries = must(files.list("s3://bucket/run"));
  std::string names;
  for (const auto& entry : entries)
    names += entry.name + (entry.kind == os::EntryKind::directory ? "/ " : " ");
  CHECK(names == "a b/ c d/ ");
  const auto below = must(files.list_below("s3://bucket/run"));
  REQUIRE(below.size() == 5);
  CHECK(below[4].name == "d/e/f");
  CHECK(must(files.list("s3://bucket/none")).empty());
  CHECK(must(files.status("s3://bucket/run/d")).kind == os::EntryKind::directory);
}

TEST_CASE_METHOD(BucketFixture, "client: a range is of the object that was opened",
                 "[unit][bucket]") {
  server.objects["a"] = "0123456789";
  const auto file = must(files.open_read("s3://bucket/a", os::Caching::direct));
  std::vector<std::byte> room(4);
  must(file->read_at(3, std::span(room)));
  CHECK(text_of(room) == "3456");
  CHECK(run(file->read_at(7, std::span(room))).error().code() == Errc::corruption);
  server.objects["a"] = "abcdefghij";
  CHECK(run(file->read_at(0, std::span(room))).error().code() == Errc::corruption);
}

TEST_CASE_METHOD(BucketFixture, "client: an answer with other bytes than asked is none",
                 "[unit][bucket]") {
  server.objects["a"] = "0123456789";
  server.after = [](const bucket::Request& request, Result<bucket::Response>& response) {
    if (request.method != "GET") return;
    for (auto& header : response->headers)
      if (header.name == "content-range") header.value = "bytes 0-3/10";
  };
  const auto file = must(files.open_read("s3://bucket/a", os::Caching::direct));
  std::vector<std::byte> room(4);
  must(file->read_at(0, std::span(room)));
  CHECK(run(file->read_at(3, std::span(room))).error().code() == Errc::io);
}

TEST_CASE_METHOD(BucketFixture, "writer: an object is what was written, in any order",
                 "[unit][bucket]") {
  const std::size_t bytes = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{8} << 20,
                                     (std::size_t{8} << 20) + 1, std::size_t{20} << 20);
  std::string content(bytes, '\0');
  Random random(bytes);
  for (char& letter : content) letter = static_cast<char>(random.next());
  const auto source = bytes_of(content);
  const auto file = must(files.create("s3://bucket/a", os::Caching::direct));
  must(file->allocate(bytes));
  // Pieces that end within parts, the last ones first.
  constexpr std::size_t piece = 3 << 20;
  for (std::size_t end = bytes; end > 0;) {
    const std::size_t begin = end > piece ? end - piece : 0;
    must(file->write_lasting_at(begin, std::span(source).subspan(begin, end - begin)));
    end = begin;
  }
  CHECK_FALSE(server.objects.contains("a"));
  must(file->sync_data());
  must(file->close());
  CHECK(server.objects["a"] == content);
  CHECK(server.uploads.empty());
  CHECK((count_of("POST") > 0) == (bytes > (std::size_t{8} << 20)));
}

TEST_CASE_METHOD(BucketFixture, "writer: without all bytes there is no object", "[unit][bucket]") {
  const std::vector<std::byte> source(9 << 20);
  auto file = must(files.create("s3://bucket/a", os::Caching::direct));
  must(file->allocate(source.size()));
  must(file->write_lasting_at(1, std::span(source).subspan(1)));
  CHECK(run(file->sync_data()).error().code() == Errc::invalid_argument);
  CHECK(run(file->write_at(source.size(), std::span(source).first(1))).error().code() ==
        Errc::invalid_argument);
  REQUIRE(server.uploads.size() == 1);
  file.reset();
  // The abort goes its way alone; any later request is behind it in the queue or beside it.
  while (!must(files.list_uploads_below("s3://bucket")).empty()) {
  }
  CHECK(server.objects.empty());
}

TEST_CASE_METHOD(BucketFixture, "writer: an upload whose completion was not answered is complete",
                 "[unit][bucket]") {
  const std::vector<std::byte> source(9 << 20);
  const auto file = must(files.create("s3://bucket/a", os::Caching::direct));
  must(file->allocate(source.size()));
  must(file->write_lasting_at(0, std::span(source)));
  int losses = 1;
  server.after = [&](const bucket::Request& request, Result<bucket::Response>& response) {
    if (request.method == "POST" && losses-- > 0) response = MemoryServer::broken();
  };
  must(file->sync_data());
  CHECK(server.objects["a"].size() == source.size());
}

TEST_CASE_METHOD(BucketFixture, "writer: a good status with an error behind it is an error",
                 "[unit][bucket]") {
  const std::vector<std::byte> source(9 << 20);
  const auto file = must(files.create("s3://bucket/a", os::Caching::direct));
  must(file->allocate(source.size()));
  must(file->write_lasting_at(0, std::span(source)));
  server.before = [&](const bucket::Request& request) -> std::optional<Result<bucket::Response>> {
    if (request.method != "POST") return std::nullopt;
    return MemoryServer::error(200, "MalformedXML");
  };
  CHECK(run(file->sync_data()).error().code() == Errc::io);
}

}  // namespace ckpt::test
