// Goal:   the option `dir` is read in one way everywhere, and what it cannot mean is refused with
//         the reason.
// Method: texts, with the places or the words of the refusal.
#include "storage/places.hpp"

#include <catch2/catch.hpp>

namespace ckpt::storage {
namespace {

Places two(std::string first, std::string second, Pace pace = {}) {
  return {std::move(first), SecondDirectory{std::move(second), pace}};
}

std::string refusal(std::string_view text) {
  const auto places = parse_places(text);
  return places ? "" : places.error().text();
}

}  // namespace

TEST_CASE("places: one path is one place", "[unit][storage]") {
  for (const char* path : {"/data/run", "run", "s3://bucket/run", "/data/a,b", "/data/a every day",
                           "/data/every 1", "every 1"}) {
    CAPTURE(path);
    const auto places = parse_places(path);
    REQUIRE(places);
    CHECK(*places == Places{path, {}});
    CHECK(to_string(*places) == path);
  }
  CHECK(parse_places("")->directories().empty());
}

TEST_CASE("places: two places in either order, and as directories", "[unit][storage]") {
  CHECK(*parse_places("/nvme/run, s3://bucket/run") == two("/nvme/run", "s3://bucket/run"));
  CHECK(*parse_places("/nvme/run,s3://bucket/run") == two("/nvme/run", "s3://bucket/run"));
  CHECK(*parse_places("s3://bucket/run , /nvme/run") == two("s3://bucket/run", "/nvme/run"));
  CHECK(*parse_places("/nvme/run,/lustre/run") == two("/nvme/run", "/lustre/run"));
  CHECK(*parse_places("here, there") == two("here", "there"));
  CHECK(parse_places("/a, /b")->directories() == std::vector<std::string>{"/a", "/b"});
}

TEST_CASE("places: `every` counts saves or time", "[unit][storage]") {
  const auto pace_of = [](const std::string& every) {
    return parse_places("/a, /b every " + every)->second->pace;
  };
  CHECK(parse_places("/a, /b")->second->pace == Pace{1, {}});
  CHECK(pace_of("10") == Pace{10, {}});
  CHECK(pace_of("90s") == Pace{0, std::chrono::seconds(90)});
  CHECK(pace_of("30min") == Pace{0, std::chrono::minutes(30)});
  CHECK(pace_of("2h") == Pace{0, std::chrono::hours(2)});
  CHECK(pace_of("1d") == Pace{0, std::chrono::hours(24)});
}

TEST_CASE("places: they read back as they were written", "[unit][storage]") {
  for (const char* text : {"/a, /b", "/a, /b every 10", "/a, s3://b/c every 90s",
                           "/a, s3://b/c every 30min", "/a, /b every 1d"}) {
    CHECK(to_string(*parse_places(text)) == text);
    CHECK(*parse_places(to_string(*parse_places(text))) == *parse_places(text));
  }
}

TEST_CASE("places: a meaningless pair is refused", "[unit][storage]") {
  CHECK(refusal("/a, /b, /c").find("they are 3, and a job has two at most") != std::string::npos);
  CHECK(refusal("/a, /a").find("both places are the same") != std::string::npos);
  CHECK(refusal("s3://b/c, s3://b/c/ every 3").find("the same") != std::string::npos);
  CHECK(refusal("/a every 10, /b").find("behind the second place") != std::string::npos);
  CHECK(refusal("/a every 10").find("behind the second place") != std::string::npos);
  CHECK(refusal("/a, ").find("a place is empty") != std::string::npos);
  CHECK(refusal(", /b").find("a place is empty") != std::string::npos);
  for (const char* wrong : {"0", "ten", "3 steps", "30 min", "1h every 2", "10w", "-1", "1.5h",
                            "99999999999999999999", ""}) {
    CAPTURE(wrong);
    const std::string text = std::string("/a, /b every ") + wrong;
    CHECK(refusal(text).find("behind `every` is neither") != std::string::npos);
  }
  CHECK(refusal("/a, /a/b").find("lies in the other") != std::string::npos);
  CHECK(refusal("s3://b/c/d, s3://b/c every 2").find("lies in the other") != std::string::npos);
  CHECK(parse_places("/a, /ab").has_value());
}

}  // namespace ckpt::storage
