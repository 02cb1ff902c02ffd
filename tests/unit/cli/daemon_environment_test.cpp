// Goal:   variables by which a daemon finds other buckets are named, and no secret is printed.
// Method: environments as the kernel shows them.
#include "cli/daemon_environment.hpp"

#include <catch2/catch.hpp>

#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::cli {

TEST_CASE("daemon environment: variables that differ are named without their values",
          "[unit][cli]") {
  using std::string_literals::operator""s;
  const auto here = test::environment_with({{"AWS_REGION", "one"}, {"AWS_PROFILE", "p"}});
  using Names = std::vector<std::string>;
  CHECK(differing_variables("HOME=/h\0AWS_REGION=one\0AWS_PROFILE=p\0"s, here).empty());
  CHECK(differing_variables("AWS_REGION=one\0AWS_PROFILE=p"s, here).empty());
  CHECK(differing_variables("AWS_PROFILE=\0AWS_REGION=two\0"s, here) ==
        Names{"AWS_REGION is another one", "AWS_PROFILE is not set"});
  CHECK(differing_variables("AWS_REGION=one\0AWS_PROFILE=p\0AWS_SECRET_ACCESS_KEY=x\0"s, here) ==
        Names{"AWS_SECRET_ACCESS_KEY is set"});
  CHECK(differing_variables("XAWS_REGION=one\0AWS_REGION_X=one\0"s, here).size() == 2);
  CHECK(differing_variables("", test::environment_with({})).empty());
}

}  // namespace ckpt::cli
