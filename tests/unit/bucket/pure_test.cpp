// Goal:   paths, requests, signatures, answers, pauses and keys are what AWS and its tools define.
// Method: examples from AWS's documents for signatures; for the rest, each form and each way to be
//         wrong.
#include <catch2/catch.hpp>

#include "bucket/answers.hpp"
#include "bucket/bucket_file.hpp"
#include "bucket/bucket_path.hpp"
#include "bucket/crc32c.hpp"
#include "bucket/credentials.hpp"
#include "bucket/http_time.hpp"
#include "bucket/retry.hpp"
#include "bucket/settings.hpp"
#include "bucket/signature.hpp"
#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

using namespace ckpt::bucket;

TEST_CASE("place: a path names a bucket and a key", "[unit][bucket]") {
  const auto [path, name, key] = GENERATE(table<std::string, std::string, std::string>({
      {"s3://bucket", "bucket", ""},
      {"s3://bucket/", "bucket", ""},
      {"s3://bucket/./.", "bucket", ""},
      {"s3://my.bucket-1/run", "my.bucket-1", "run"},
      {"s3://bucket//a/./b c//", "bucket", "a/b c"},
  }));
  const auto place = parse_bucket_path(path);
  REQUIRE(place.has_value());
  CHECK(place->bucket == name);
  CHECK(place->key == key);
}

TEST_CASE("place: a name that no bucket can have is refused", "[unit][bucket]") {
  const std::string path =
      GENERATE("s3://", "s3://ab", "s3://Bucket/x", "s3://bucket:80/x", "s3://a@bucket/x",
               "s3://-bucket/x", "s3://bucket/a/../b", "s3://bucket/a\nb", "/bucket/x");
  const auto place = parse_bucket_path(path);
  REQUIRE_FALSE(place.has_value());
  REQUIRE(place.error().code() == Errc::invalid_argument);
}

TEST_CASE("place: a path without a bucket is told what it lacks", "[unit][bucket]") {
  for (const std::string scheme : {"s3://", "gs://"}) {
    const Status checked = check_path(scheme);
    REQUIRE_FALSE(checked.has_value());
    CHECK(checked.error().text() ==
          "the path " + scheme + ": it names no bucket: write " + scheme + "BUCKET/PREFIX");
  }
}

TEST_CASE("place: another scheme is refused with what to use instead", "[unit][bucket]") {
  const auto [path, advice] = GENERATE(table<std::string, std::string>({
      {"gcs://bucket/x", "gs://"},
      {"az://container/x", "mount"},
      {"s3a://bucket/x", "s3://"},
      {"hdfs://host/x", "directory"},
      {"s3:/bucket/x", "s3:// has two slashes"},
      {"gs:/bucket/x", "gs:// has two slashes"},
      {"file:///x", "plain path"},
  }));
  const Status checked = check_path(path);
  REQUIRE_FALSE(checked.has_value());
  REQUIRE(checked.error().code() == Errc::invalid_argument);
  REQUIRE(checked.error().text().find(advice) != std::string::npos);
}

TEST_CASE("place: paths of files pass, also odd ones", "[unit][bucket]") {
  const std::string path = GENERATE("/a", "a", "", "./s3:", "/data/http://x", "a b://c");
  REQUIRE(check_path(path).has_value());
  REQUIRE_FALSE(is_bucket_path(path));
}

TEST_CASE("request: path and query are encoded as they are signed", "[unit][bucket]") {
  Request request;
  request.origin.host = "host";
  request.key = "a b/c+d/\xc3\xa9~";
  request.query = {{"uploads", ""}, {"prefix", "a/b"}, {"list-type", "2"}};
  REQUIRE(request.url() == "https://host/a%20b/c%2Bd/%C3%A9~?list-type=2&prefix=a%2Fb&uploads=");
}

TEST_CASE("request: an endpoint has a scheme, a host, and maybe a port and a path",
          "[unit][bucket]") {
  const auto plain = parse_origin("http://127.0.0.1:9000/s3/");
  REQUIRE(plain.has_value());
  REQUIRE(*plain == Origin{"http", "127.0.0.1:9000", "/s3"});
  REQUIRE(parse_origin("https://host:443")->host == "host");  // Else `host` is signed otherwise.
  const std::string bad =
      GENERATE("host", "ftp://host", "https://", "https://host?x", "https://user@host");
  REQUIRE_FALSE(parse_origin(bad).has_value());
}

// "Example: GET Object" and "Example: PUT Object" of AWS's page on signing with headers.
TEST_CASE("signature: the examples of AWS come out", "[unit][bucket]") {
  Request request;
  request.origin.host = "examplebucket.s3.amazonaws.com";
  SigningScope scope;
  scope.region = "us-east-1";
  scope.time = parse_http_time("Fri, 24 May 2013 00:00:00 GMT").value();
  Keys keys;
  keys.access_key = "AKIAIOSFODNN7EXAMPLE";
  keys.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  SECTION("a list with a query") {
    request.query = {{"max-keys", "2"}, {"prefix", "J"}};
    sign(request, keys, scope);
    REQUIRE(request.headers.back().value.ends_with(
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
  }
  SECTION("a put with headers and a body") {
    const std::string body = "Welcome to Amazon S3.";
    request.method = "PUT";
    request.key = "test$file.text";
    request.headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                       {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    request.body.push_back(std::as_bytes(std::span(body)));
    sign(request, keys, scope);
    REQUIRE(request.headers.back().value.ends_with(
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  }
  SECTION("a session's token is sent and signed") {
    keys.session_token = "token";
    sign(request, keys, scope);
    REQUIRE(request.headers.back().value.find("x-amz-security-token") != std::string::npos);
  }
}

// Computed apart from this code, by the steps of Google's page on canonical requests.
TEST_CASE("signature: Google's differs by its words", "[unit][bucket]") {
  Request request;
  request.origin.host = "storage.googleapis.com";
  request.origin.path = "/bucket";
  request.key = "a b";
  request.query = {{"prefix", "J"}};
  SigningScope scope;
  scope.region = "auto";
  scope.service = google.service;
  scope.dialect = google;
  scope.time = parse_http_time("Fri, 24 May 2013 00:00:00 GMT").value();
  Keys keys;
  keys.access_key = "GOOG1EXAMPLE";
  keys.secret_key = "secret";
  sign(request, keys, scope);
  CHECK(request.headers.back().value ==
        "GOOG4-HMAC-SHA256 Credential=GOOG1EXAMPLE/20130524/auto/storage/goog4_request, "
        "SignedHeaders=host;x-goog-content-sha256;x-goog-date, "
        "Signature=ace63feb6d2c8c4a8e11dc78edad7e302e48e4cb48a3ca1730ae447aa4cdb427");
}

TEST_CASE("crc32c: the known value comes out, at once and in pieces", "[unit][bucket]") {
  const std::string_view text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  CHECK(crc32c(bytes) == 0xe3069283u);
  CHECK(crc32c(bytes.subspan(4), crc32c(bytes.first(4))) == 0xe3069283u);
  CHECK(crc32c({}) == 0);
}

TEST_CASE("settings: Google's have a place and an endpoint of their own", "[unit][bucket]") {
  const auto settings = Settings::read(
      environment_with({{"AWS_ENDPOINT_URL", "http://s3"}, {"AWS_REGION", "eu"}}), Scheme::gs);
  REQUIRE(settings.has_value());
  CHECK(settings->describe() == "https://storage.googleapis.com");
  CHECK(settings->origin_of("b") == Origin{"https", "storage.googleapis.com", "/b"});
  CHECK(settings->region == "auto");
  const auto other =
      Settings::read(environment_with({{"LIBCKPT_GS_ENDPOINT", "http://h:1"}}), Scheme::gs);
  CHECK(other->describe() == "http://h:1");
  CHECK_FALSE(Settings::read(environment_with({{"LIBCKPT_GS_ENDPOINT", "h"}}), Scheme::gs));
}

TEST_CASE("credentials: Google's keys are an HMAC key of two variables", "[unit][bucket]") {
  const auto found = find_google_credentials(
      environment_with({{"LIBCKPT_GS_ACCESS_KEY_ID", "a"}, {"LIBCKPT_GS_SECRET_ACCESS_KEY", "b"}}));
  REQUIRE(found.has_value());
  CHECK(found->keys.access_key == "a");
  CHECK(found->keys.secret_key == "b");
  const auto none = find_google_credentials(
      environment_with({{"AWS_ACCESS_KEY_ID", "a"}, {"AWS_SECRET_ACCESS_KEY", "b"}}));
  REQUIRE_FALSE(none.has_value());
  CHECK_THAT(none.error().message(), Catch::Contains("LIBCKPT_GS_SECRET_ACCESS_KEY"));
}

TEST_CASE("answers: a listing is read, and one that was cut off is refused", "[unit][bucket]") {
  const auto page = parse_list(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3\">"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
      "<Contents><Key>a&amp;b</Key><Size>12</Size><Owner/></Contents>"
      "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes></ListBucketResult>");
  REQUIRE(page.has_value());
  REQUIRE(page->objects.size() == 1);
  CHECK(page->objects[0].key == "a&b");
  CHECK(page->objects[0].bytes == 12);
  CHECK(page->prefixes == std::vector<std::string>{"c/"});
  CHECK(page->next == "t");
  const std::string bad =
      GENERATE("", "no xml", "<A><B></A>", "<A><IsTruncated>true</IsTruncated></A>",
               "<A><Contents><Key>k</Key><Size>many</Size></Contents></A>",
               "<A><Contents><Size>1</Size></Contents></A>");
  REQUIRE_FALSE(parse_list(bad).has_value());
}

TEST_CASE("answers: deep nesting is an error and no crash", "[unit][bucket]") {
  std::string text;
  for (int depth = 0; depth < 1'000'000; ++depth) text += "<a>";
  REQUIRE_FALSE(parse_list(text).has_value());
  std::string flat = "<A>";
  for (int count = 0; count < 1000; ++count) flat += "<Owner/><b>x</b>";
  REQUIRE(parse_list(flat + "</A>").has_value());
}

TEST_CASE("answers: parts are listed in their order, with their checksums", "[unit][bucket]") {
  REQUIRE(render_parts({{"\"t1\"", "AAAAAA=="}, {"t2", ""}}) ==
          "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
          "<Part><PartNumber>1</PartNumber><ETag>&quot;t1&quot;</ETag>"
          "<ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part>"
          "<Part><PartNumber>2</PartNumber><ETag>t2</ETag></Part></CompleteMultipartUpload>");
}

TEST_CASE("retry: an error that may pass is tried again, and no other", "[unit][bucket]") {
  const auto reaction = [](int status, const char* code) {
    return reaction_to(status, ServerError{code, ""});
  };
  for (const int status : {408, 429, 500, 502, 503, 504})
    CHECK(reaction(status, "") == Reaction::try_again);
  CHECK(reaction(409, "ConditionalRequestConflict") == Reaction::try_again);
  CHECK(reaction(400, "ExpiredToken") == Reaction::renew_keys);
  CHECK(reaction(403, "RequestTimeTooSkewed") == Reaction::set_clock);
  for (const int status : {301, 400, 403, 404, 412, 416, 501})
    CHECK(reaction(status, "Other") == Reaction::give_up);
}

TEST_CASE("retry: pauses double up to a bound, and are drawn", "[unit][bucket]") {
  Random random(1);
  Duration longest{};
  for (int failures = 1; failures <= tries_max; ++failures) {
    const Duration pause = pause_after(failures, random);
    CHECK(pause >= Duration::zero());
    CHECK(pause <= std::chrono::milliseconds(200) * (1 << (failures - 1)));
    CHECK(pause <= std::chrono::seconds(10));
    longest = std::max(longest, pause);
  }
  CHECK(pause_after(3, random) != pause_after(3, random));
  CHECK(longest > std::chrono::milliseconds(200));
}

TEST_CASE("times: those of headers and of keys are read", "[unit][bucket]") {
  const auto time = parse_http_time("Thu, 26 Nov 2026 06:37:10 GMT");
  REQUIRE(time.has_value());
  REQUIRE(time == parse_iso_time("2026-11-26T06:37:10Z"));
  REQUIRE(time == parse_iso_time("2026-11-26T06:37:10.123Z"));
  REQUIRE_FALSE(parse_http_time("2026-11-26").has_value());
  REQUIRE_FALSE(parse_http_time("Thu, 26 Nyv 2026 06:37:10 GMT").has_value());
  REQUIRE_FALSE(parse_iso_time("").has_value());
}

TEST_CASE("settings: the order is that of the AWS tools", "[unit][bucket]") {
  const std::map<std::string, std::string> files{
      {"/h/.aws/config",
       "[default]\nregion = eu-west-1\nendpoint_url = https://one\n[profile two]\n"
       "region=eu-west-2\ns3 =\n  addressing_style = path\n"}};
  SECTION("Amazon's own") {
    const auto settings = Settings::read(environment_with({}));
    REQUIRE(settings.has_value());
    CHECK(settings->origin_of("bucket").host == "bucket.s3.us-east-1.amazonaws.com");
    CHECK(settings->origin_of("with.dots").path == "/with.dots");
  }
  SECTION("the profile") {
    const auto settings = Settings::read(environment_with({{"HOME", "/h"}}, files));
    REQUIRE(settings.has_value());
    CHECK(settings->region == "eu-west-1");
    CHECK(settings->origin_of("bucket") == Origin{"https", "one", "/bucket"});
  }
  SECTION("another profile") {
    const auto settings =
        Settings::read(environment_with({{"HOME", "/h"}, {"AWS_PROFILE", "two"}}, files));
    REQUIRE(settings.has_value());
    CHECK(settings->region == "eu-west-2");
    CHECK_FALSE(settings->endpoint.has_value());
  }
  SECTION("the environment first") {
    const auto settings = Settings::read(environment_with({{"HOME", "/h"},
                                                           {"AWS_REGION", "r"},
                                                           {"AWS_ENDPOINT_URL", "https://two"},
                                                           {"AWS_ENDPOINT_URL_S3", "https://s3"},
                                                           {"LIBCKPT_S3_ADDRESSING", "virtual"}},
                                                          files));
    REQUIRE(settings.has_value());
    CHECK(settings->region == "r");
    CHECK(settings->origin_of("bucket") == Origin{"https", "bucket.s3", ""});
  }
  SECTION("what is wrong is named") {
    CHECK_FALSE(Settings::read(environment_with({{"AWS_ENDPOINT_URL", "host"}})).has_value());
    CHECK_FALSE(Settings::read(environment_with({{"LIBCKPT_S3_ADDRESSING", "x"}})).has_value());
  }
}

TEST_CASE("settings: proxies are those of libcurl", "[unit][bucket]") {
  const auto proxies = [](const std::map<std::string, std::string>& variables) {
    const Proxies found = Proxies::read(environment_with(variables));
    return found.http + '|' + found.https + '|' + found.none_for;
  };
  CHECK(proxies({}) == "||");
  CHECK(proxies({{"http_proxy", "a"}, {"https_proxy", "b"}, {"no_proxy", "c"}}) == "a|b|c");
  CHECK(proxies({{"HTTP_PROXY", "A"}, {"HTTPS_PROXY", "B"}, {"NO_PROXY", "C"}}) == "|B|C");
  CHECK(proxies({{"all_proxy", "a"}, {"ALL_PROXY", "A"}, {"HTTPS_PROXY", "B"}}) == "a|B|");
  CHECK(proxies({{"ALL_PROXY", "A"}, {"http_proxy", "a"}}) == "a|A|");
  for (const Scheme scheme : {Scheme::s3, Scheme::gs}) {
    const auto settings = Settings::read(environment_with({{"https_proxy", "b"}}), scheme);
    CHECK(settings.value().proxies.https == "b");
  }
}

TEST_CASE("environment: a bucket's variables are those of when it was made", "[unit][bucket]") {
  ::setenv("CKPT_TEST_KEY", "first", 1);
  ::setenv("CKPT_TEST_EMPTY", "", 1);
  const Environment environment = Environment::of_process();
  ::setenv("CKPT_TEST_KEY", "second", 1);
  ::setenv("CKPT_TEST_LATE", "late", 1);
  CHECK(environment.variable("CKPT_TEST_KEY") == "first");
  CHECK_FALSE(environment.variable("CKPT_TEST_EMPTY"));
  CHECK_FALSE(environment.variable("CKPT_TEST_LATE"));
  for (const char* name : {"CKPT_TEST_KEY", "CKPT_TEST_EMPTY", "CKPT_TEST_LATE"}) ::unsetenv(name);
}

TEST_CASE("settings: it is said whose variable or profile names the server", "[unit][bucket]") {
  const auto origin = [](const std::map<std::string, std::string>& variables,
                         Scheme scheme = Scheme::s3) {
    auto environment = environment_with(variables, {{"/h/.aws/config", "[default]\nregion = x\n"}});
    environment.name = "the daemon's";
    environment.remedy = "; stop it";
    const auto settings = Settings::read(environment, scheme);
    return settings ? settings->source : settings.error().message();
  };
  CHECK(origin({{"AWS_ENDPOINT_URL", "http://one"}, {"AWS_REGION", "r"}}) ==
        "the endpoint is that of AWS_ENDPOINT_URL in the daemon's; stop it");
  CHECK(origin({{"AWS_REGION", "r"}}) ==
        "the region is that of AWS_REGION in the daemon's; stop it");
  CHECK(origin({{"HOME", "/h"}}) == "the region is that of profile default; stop it");
  CHECK(origin({}) ==
        "neither the daemon's nor the profile names an endpoint or a region; stop it");
  CHECK_THAT(origin({{"AWS_ENDPOINT_URL_S3", "host"}}),
             Catch::Contains("AWS_ENDPOINT_URL_S3 in the daemon's"));
  CHECK_THAT(origin({{"LIBCKPT_GS_ENDPOINT", "http://g"}}, Scheme::gs),
             Catch::Contains("LIBCKPT_GS_ENDPOINT in the daemon's; stop it"));
}

TEST_CASE("keys: where none are, it is said whose environment was looked at", "[unit][bucket]") {
  auto environment = environment_with({{"AWS_EC2_METADATA_DISABLED", "true"}});
  const Environment daemon = Environment::of_daemon(77, "2026-11-26 21:03:11 UTC");
  environment.name = daemon.name;
  environment.remedy = daemon.remedy;
  MemoryServer server;
  const auto transport = server.transport();
  const std::string aws = find_credentials(environment, "r", *transport).error().message();
  const std::string google = find_google_credentials(environment).error().message();
  for (const std::string& text : {aws, google}) {
    CHECK_THAT(text, Catch::Contains("process 77, since 2026-11-26 21:03:11 UTC"));
    CHECK_THAT(text, Catch::Contains("`ckpt stop`"));
  }
  CHECK_THAT(aws, Catch::Contains("write the keys into the profile"));
  environment = environment_with({{"AWS_EC2_METADATA_DISABLED", "true"}});
  const std::string own = find_credentials(environment, "r", *transport).error().message();
  CHECK_THAT(own, Catch::Contains("none in the environment (") && !Catch::Contains("ckpt stop"));
}

namespace {

// Answers by URL; nobody is behind others.
class Services final : public Transport {
 public:
  std::map<std::string, std::string> answers;
  std::vector<std::string> asked;

  Result<Response> perform(const Request& request) override {
    asked.push_back(request.url());
    const auto found = answers.find(request.url());
    if (found != answers.end()) return MemoryServer::answer(200, found->second);
    return fail(Errc::unavailable, "nobody is there");
  }
  void stop() override {}
};

}  // namespace

TEST_CASE("keys: each place is asked in its turn", "[unit][bucket]") {
  Services services;
  SECTION("the environment") {
    const auto found = find_credentials(environment_with({{"AWS_ACCESS_KEY_ID", "a"},
                                                          {"AWS_SECRET_ACCESS_KEY", "s"},
                                                          {"AWS_SESSION_TOKEN", "t"}}),
                                        "r", services);
    REQUIRE(found.has_value());
    CHECK(found->keys.session_token == "t");
    CHECK(services.asked.empty());
  }
  SECTION("a web identity") {
    services.answers
        ["https://sts.r.amazonaws.com/?Action=AssumeRoleWithWebIdentity&"
         "RoleArn=arn&RoleSessionName=libckpt&Version=2011-06-15&"
         "WebIdentityToken=jwt"] =
        "<X><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>w</AccessKeyId>"
        "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        "<Expiration>2026-11-26T06:37:10Z</Expiration></Credentials>"
        "</AssumeRoleWithWebIdentityResult></X>";
    const auto found = find_credentials(
        environment_with({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/token"}, {"AWS_ROLE_ARN", "arn"}},
                         {{"/token", "jwt\n"}}),
        "r", services);
    REQUIRE((found ? "" : found.error().message()) == "");
    CHECK(found->keys.access_key == "w");
    CHECK(found->expires == parse_iso_time("2026-11-26T06:37:10Z"));
  }
  SECTION("a profile") {
    const auto found = find_credentials(
        environment_with({{"HOME", "/h"}, {"AWS_PROFILE", "p"}},
                         {{"/h/.aws/credentials",
                           "[p]\naws_access_key_id = a\naws_secret_access_key= s/+= \n"}}),
        "r", services);
    REQUIRE(found.has_value());
    CHECK(found->keys.secret_key == "s/+=");
    CHECK(found->origin == "profile p");
  }
  SECTION("a container") {
    services.answers["http://169.254.170.2/v2/keys"] =
        "{\"AccessKeyId\":\"c\",\"SecretAccessKey\":\"s\",\"Token\":\"t\","
        "\"Expiration\":\"2026-11-26T06:37:10Z\"}";
    const auto found = find_credentials(
        environment_with({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/keys"}}), "r", services);
    REQUIRE((found ? "" : found.error().message()) == "");
    CHECK(found->keys.access_key == "c");
  }
  SECTION("an instance") {
    const std::string base = "http://169.254.169.254/latest/";
    services.answers[base + "api/token"] = "token";
    const std::string folder = base + "meta-data/iam/security-credentials/";
    services.answers[folder] = "role";
    services.answers[folder + "role"] =
        "{\"AccessKeyId\":\"i\",\"SecretAccessKey\":\"s\",\"Token\":\"t\"}";
    const auto found = find_credentials(environment_with({}), "r", services);
    REQUIRE((found ? "" : found.error().message()) == "");
    CHECK(found->keys.access_key == "i");
  }
  SECTION("nowhere") {
    const auto found =
        find_credentials(environment_with({{"AWS_EC2_METADATA_DISABLED", "true"}}), "r", services);
    REQUIRE_FALSE(found.has_value());
    CHECK(found.error().code() == Errc::io);
    CHECK(services.asked.empty());
  }
}

TEST_CASE("keys: those that end soon are looked for again", "[unit][bucket]") {
  Services services;
  const std::string url = "http://169.254.170.2/keys";
  const auto text = [](const std::string& name, const std::string& end) {
    return "{\"AccessKeyId\":\"" + name + "\",\"SecretAccessKey\":\"s\",\"Expiration\":\"" + end +
           "\"}";
  };
  services.answers[url] = text("one", "2026-11-26T07:00:00Z");
  CredentialSource source(environment_with({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/keys"}}),
                          Settings(), services);
  const auto at = [](const char* time) { return parse_iso_time(time).value(); };
  REQUIRE(source.at(at("2026-11-26T06:00:00Z"))->keys.access_key == "one");
  services.answers[url] = text("two", "2026-11-26T08:00:00Z");
  REQUIRE(source.at(at("2026-11-26T06:50:00Z"))->keys.access_key == "one");
  const auto renewed = source.at(at("2026-11-26T06:56:00Z"));
  REQUIRE(renewed->keys.access_key == "two");
  SECTION("and go on being used while no others can be had") {
    services.answers.clear();
    REQUIRE(source.at(at("2026-11-26T07:58:00Z"))->keys.access_key == "two");
    REQUIRE_FALSE(source.at(at("2026-11-26T08:01:00Z")).has_value());
  }
  SECTION("and so are those that the server refused") {
    services.answers[url] = text("three", "2026-11-26T08:00:00Z");
    source.forget(*renewed);
    REQUIRE(source.at(at("2026-11-26T07:00:00Z"))->keys.access_key == "three");
  }
}

TEST_CASE("parts: they are whole Chunks, large enough, and not too many", "[unit][bucket]") {
  constexpr std::uint64_t chunk = 4 << 20;
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{80} << 30,
                                    (std::uint64_t{80} << 30) + 1, std::uint64_t{5} << 40}) {
    const std::uint64_t part = part_bytes_of(bytes);
    CHECK(part % chunk == 0);
    CHECK(part >= part_bytes_min);
    CHECK((bytes + part - 1) / part <= parts_max);
  }
  CHECK(part_bytes_of(1) == part_bytes_min);
}

}  // namespace ckpt::test
