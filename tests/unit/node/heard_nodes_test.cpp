// Goal:   what a node stated counts as long as it states it, with the boot that it has now: the
//         numbers of two boots say nothing about one another.
// Method: reports and decrees of one node, and the numbers that its signs of life repeat.
#include "node/heard_nodes.hpp"

#include <catch2/catch.hpp>

namespace ckpt::node {
namespace {

const agree::JobShape shape = [] {
  agree::JobShape one;
  one.run = {1, 2};
  one.incarnation = 3;
  return one;
}();
const Digest members{4, 5};

format::NodeReport report(std::uint64_t boot, std::uint64_t number) {
  format::NodeReport one;
  one.node = "B";
  one.run = shape.run;
  one.incarnation = shape.incarnation;
  one.members = members;
  one.boot = boot;
  one.sequence = number;
  return one;
}

format::Decree decree(std::uint64_t boot, std::uint64_t number) {
  format::Decree one;
  one.coordinator = "B";
  one.run = shape.run;
  one.incarnation = shape.incarnation;
  one.members = members;
  one.coordinator_boot = boot;
  one.sequence = number;
  return one;
}

}  // namespace

TEST_CASE("heard nodes: a report counts as long as its node states it", "[unit][node]") {
  HeardNodes heard;
  const auto counts = [&] { return heard.report_of("B", shape, members) != nullptr; };
  CHECK_FALSE(counts());
  heard.stated("B", 7, 1);
  CHECK_FALSE(counts());  // It is on its way.
  heard.report_received(report(7, 1));
  CHECK(counts());
  heard.stated("B", 7, 2);
  CHECK_FALSE(counts());
  heard.report_received(report(7, 2));
  CHECK(counts());
  heard.stated("B", 7, 0);  // To another coordinator by now.
  CHECK_FALSE(counts());
  heard.report_received(report(7, 2));  // Its Start took long.
  CHECK_FALSE(counts());
}

TEST_CASE("heard nodes: a report of an older boot does not count, whatever its number",
          "[unit][node]") {
  HeardNodes heard;
  heard.stated("B", 7, 1);
  heard.report_received(report(7, 1));
  heard.stated("B", 8, 1);
  CHECK(heard.report_of("B", shape, members) == nullptr);
  heard.report_received(report(8, 1));
  CHECK(heard.report_of("B", shape, members) != nullptr);
  heard.report_received(report(7, 1));
  CHECK(heard.report_of("B", shape, members) == nullptr);
}

TEST_CASE("heard nodes: a decree of an older boot, or that is no longer stated, is not followed",
          "[unit][node]") {
  HeardNodes heard;
  heard.stated("B", 7, 4);
  heard.decree_received(decree(7, 4));
  REQUIRE(heard.decree_of("B", shape, members) != nullptr);
  SECTION("an older boot") {
    heard.stated("B", 8, 4);
  }
  SECTION("an older number") {
    heard.stated("B", 7, 5);
  }
  SECTION("nothing is stated") {
    heard.stated("B", 7, 0);
  }
  CHECK(heard.decree_of("B", shape, members) == nullptr);
}

TEST_CASE("heard nodes: that a job has ended is known from the report that said so last",
          "[unit][node]") {
  HeardNodes heard;
  CHECK_FALSE(heard.has_ended("B", shape.run));
  heard.stated("B", 7, 1);
  heard.report_received(report(7, 1));
  CHECK_FALSE(heard.has_ended("B", shape.run));
  auto last = report(7, 2);
  last.has_ended = true;
  heard.stated("B", 7, 2);
  heard.report_received(last);
  CHECK(heard.has_ended("B", shape.run));
  heard.stated("B", 7, 0);  // It has dropped the job, and says nothing of it.
  CHECK(heard.has_ended("B", shape.run));
}

}  // namespace ckpt::node
