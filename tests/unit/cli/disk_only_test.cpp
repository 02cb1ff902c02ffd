// Goal:   commands that work with directories only say so of a bucket, before they do anything.
// Method: each is given one, as every path that it takes.
#include "cli/disk_only.hpp"

#include <catch2/catch.hpp>

#include "cli/commands.hpp"

namespace ckpt::cli {
namespace {

void require_refused(const Result<Outcome>& outcome) {
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code() == Errc::unsupported);
  CHECK_THAT(outcome.error().message(), Catch::Contains("s3://bucket/run"));
}

}  // namespace

TEST_CASE("disk only: a bucket is refused by name", "[unit][cli]") {
  const std::string bucket = "s3://bucket/run", directory = "/nonexistent/run";
  GcOptions collected;
  collected.dir = bucket;
  require_refused(collect_garbage(collected));
  ImportOptions imported;
  imported.from = {"/nonexistent/file"};
  imported.to = bucket;
  require_refused(import_tensors(imported));
  CHECK(check_on_disk("copy", directory));
}

}  // namespace ckpt::cli
