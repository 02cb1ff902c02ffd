// Goal:   a trainer that would spoil a job which is open here is refused for good, and told why.
// Method: an engine with one job; requests that differ from those of its trainer in one point.
#include "unit/node/one_rank.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {

TEST_CASE("attach: a trainer that does not fit the open job is refused, in words that help",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.incarnation = 5;
  REQUIRE(rank.begin_fresh());

  std::string words;
  AttachRequest other = rank.request;
  SECTION("an older list of nodes") {
    other.incarnation = 4;
    words = "incarnation 4 of the list of nodes is out of date, the job has 5";
  }
  SECTION("another directory") {
    other.dir = "/elsewhere";
    words = "writes to '/scratch/job' on this node, not to '/elsewhere'";
  }
  SECTION("a rank beyond the world") {
    other.rank = 1;
    words = "rank 1 of a job of 1 rank";
  }
  SECTION("a node that is not listed") {
    other.node = "B";
    words = "node 'B' is not in the job's list";
  }
  const Status told_before = rank.engine->check_attach(other);
  const auto refused =
      test::finish(rank.clock, test::start(rank.context, rank.engine->attach(other, rank)));
  REQUIRE_FALSE(told_before);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);  // Asking again would not help.
  CHECK_THAT(refused.error().text(), Catch::Contains(words));
  CHECK(told_before.error().text() == refused.error().text());
  rank.capture(Step{1});  // The one that is attached goes on.
  CHECK(rank.pass_until([&] { return rank.committed == Step{1}; }));
}

TEST_CASE(
    "attach: a directory for a job that began without one is refused, and no step is lost by "
    "the advice",
    "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.dir.clear();
  REQUIRE(rank.begin_fresh());
  AttachRequest other = rank.request;
  other.dir = "/scratch/job";
  const Status refused = rank.engine->check_attach(other);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text(),
             Catch::Contains("has no directory") && !Catch::Contains("ckpt stop") &&
                 Catch::Contains("ckpt cp memory:" + rank.request.job + " '/scratch/job'"));
}

TEST_CASE("attach: a compression that the daemon does not know is refused", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.compression = "lz4";
  const auto refused = rank.attach();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(), Catch::Contains("compression") && Catch::Contains("zstd:3"));
  rank.request.compression = "zstd";
  CHECK(rank.attach());
}

TEST_CASE("attach: a newer list of nodes fences what is left of the older one", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank stopped(disk);  // Its rank may be on another node by now.
  stopped.request.world_size = 2;
  stopped.request.incarnation = 5;
  stopped.request.process = 17;
  REQUIRE(stopped.attach());

  test::Rank newer;
  AttachRequest request = stopped.request;
  request.rank = 1;
  request.incarnation = 6;
  request.process = GENERATE(0u, 18u, 17u);
  CAPTURE(request.process);
  auto attached = test::finish(
      stopped.clock, test::start(stopped.context, stopped.engine->attach(request, newer)));
  REQUIRE(attached);
  const Status begun = stopped.engine->call(stopped.session, control::StartFresh{1});
  REQUIRE_FALSE(begun);
  CHECK(begun.error().code() == (request.process == 17 ? Errc::not_found : Errc::unavailable));
  // The older one gets no report.
  const std::string status = stopped.engine->status_json();
  const auto first = status.find("\"attached\": true");
  REQUIRE(first != std::string::npos);
  CHECK(status.find("\"attached\": true", first + 1) == std::string::npos);
}

}  // namespace ckpt::node
