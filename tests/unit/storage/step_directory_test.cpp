// Goal:   only names that we made are taken for ours.
// Method: names made and parsed back, at the edges of their numbers; then everything that looks
//         almost like one.
#include "storage/step_directory.hpp"

#include <catch2/catch.hpp>
#include <limits>

namespace ckpt::storage {

TEST_CASE("step directory: a made name is parsed back", "[unit][storage]") {
  for (const std::uint64_t step :
       {std::uint64_t{0}, std::uint64_t{123}, std::uint64_t{999'999'999},
        std::uint64_t{1'000'000'000}, std::numeric_limits<std::uint64_t>::max()}) {
    for (const std::uint32_t generation : {1u, 2u, generations_max}) {
      const std::string name = step_directory_name(Step{step}, generation);
      CAPTURE(name);
      const auto parsed = parse_step_directory(name);
      REQUIRE(parsed.has_value());
      REQUIRE(parsed->step == Step{step});
      REQUIRE(parsed->generation == generation);
      REQUIRE_FALSE(parse_work_directory(name).has_value());
    }
    format::StepId at;
    at.step = Step{step};
    at.timeline = step;
    const std::string name = work_directory_name(at, step);
    const auto parsed = parse_work_directory(name);
    REQUIRE(parsed.has_value());
    REQUIRE(parsed->at == at);
    REQUIRE(parsed->attempt == step);
    REQUIRE_FALSE(parse_step_directory(name).has_value());
  }
  REQUIRE(step_directory_name(Step{123}) == "step-000000123");
  REQUIRE(step_directory_name(Step{123}, 2) == "step-000000123.g2");
}

TEST_CASE("step directory: a name that only looks like ours is foreign", "[unit][storage]") {
  for (const char* name : {"",
                           "step-",
                           "step-1",
                           "step-00000123",
                           "step-0000000123",
                           "step-000000123 ",
                           "step-000000123.g1",
                           "step-000000123.g02",
                           "step-000000123.g",
                           "step-000000123.g101",
                           "step-00000012a",
                           "step--00000123",
                           "step-+00000123",
                           "Step-000000123",
                           "step-000000123/",
                           "step-000000123.t1",
                           "step-99999999999999999999",
                           "123",
                           "checkpoint-000000123",
                           "step-000000123\n",
                           "step-000000123.g2.g3"}) {
    CAPTURE(name);
    REQUIRE_FALSE(parse_step_directory(name).has_value());
  }
  for (const char* name :
       {".step-000000123", ".step-000000123.t1", ".step-000000123.t1.", ".step-000000123.t1.12",
        ".step-000000123.t1.00000000000000G0", ".step-000000123.t01.0000000000000001",
        ".step-000000123.t1.000000000000000A", ".step-1.t1.0000000000000001",
        "step-000000123.t1.0000000000000001", ".step-000000123.t1.00000000000000011"}) {
    CAPTURE(name);
    REQUIRE_FALSE(parse_work_directory(name).has_value());
  }
  REQUIRE(is_aside_name(".latest.00000000000000ff", ".latest"));
  REQUIRE_FALSE(is_aside_name(".latest.ff", ".latest"));
  REQUIRE_FALSE(is_aside_name(".latest", ".latest"));
}

}  // namespace ckpt::storage
