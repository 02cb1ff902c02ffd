// Goal:   tables stay readable, whatever the names in them contain.
// Method: small tables are compared with what a terminal is to show.
#include <catch2/catch.hpp>

#include "cli/json_read.hpp"
#include "cli/size_text.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace ckpt::cli {

TEST_CASE("table: columns are as wide as their widest cell, lines end without blanks",
          "[unit][cli]") {
  Table table("lr", {"NAME", "N"});
  CHECK(table.is_empty());
  table.add({"a", "100"});
  table.add({"longer", "7"});
  CHECK_FALSE(table.is_empty());
  CHECK(table.to_text(2) == "  NAME      N\n  a       100\n  longer    7\n");
}

TEST_CASE("table: on a narrow terminal the first column has lines of its own", "[unit][cli]") {
  Table table("lr", {"NAME", "N"});
  table.add({"a", "100"});
  table.add({"long\xc3\xa9r", "7"});
  const std::string wide = "NAME      N\na       100\nlong\xc3\xa9r    7\n";
  CHECK(table.to_text(0, 11) == wide);
  CHECK(table.to_text(0) == wide);
  CHECK(table.to_text(0, 10) == "NAME\n      N\na\n    100\nlong\xc3\xa9r\n      7\n");
}

TEST_CASE("table: a narrow terminal gets as many lines as it needs, and columns stay aligned",
          "[unit][cli]") {
  Table table("lrlr", {"NAME", "N", "WHERE", "SIZE"});
  table.add({"a", "100", "here", "1"});
  table.add({"longer", "7", "there", "22"});
  CHECK(table.to_text(0, 24) ==
        "NAME      N  WHERE  SIZE\na       100  here      1\nlonger    7  there    22\n");
  CHECK(table.to_text(0, 23) ==
        "NAME\n      N  WHERE  SIZE\na\n    100  here      1\nlonger\n      7  there    22\n");
  CHECK(table.to_text(0, 17) ==
        "NAME\n      N  WHERE\n    SIZE\na\n    100  here\n       1\nlonger\n      7  there\n"
        "      22\n");
  for (const std::size_t width : {1u, 5u, 9u})  // Never endless, and nothing is lost.
    CHECK(table.to_text(0, width).find("there") != std::string::npos);
}

TEST_CASE("table: a column that has no cell is not shown", "[unit][cli]") {
  Table table("lrl", {"NAME", "RANK", "DIFFERENCE"});
  table.add({"a", "", "some"});
  CHECK(table.to_text(0) == "NAME  DIFFERENCE\na     some\n");
  table.add({"b", "1", ""});
  CHECK(table.to_text(0) == "NAME  RANK  DIFFERENCE\na           some\nb        1\n");
}

TEST_CASE("terminal: progress has a rate and the time left", "[unit][cli]") {
  CHECK(progress_text(0, 10 << 20, 0) == "  0 %  0 B of 10.0 MiB");
  CHECK(progress_text(4 << 20, 10 << 20, 2) == " 40 %  4.0 MiB of 10.0 MiB  2.0 MiB/s  3 s left");
  CHECK(progress_text(10 << 20, 10 << 20, 2).starts_with("100 %"));
  CHECK(progress_text(0, 0, 1).starts_with("100 %"));
}

TEST_CASE("size text: units as Hugging Face and as our options have them", "[unit][cli]") {
  CHECK(*parse_size("5GB") == 5'000'000'000);
  CHECK(*parse_size("2GiB") == std::uint64_t{2} << 30);
  CHECK(*parse_size("500MB") == 500'000'000);
  CHECK(*parse_size("4096") == 4096);
  CHECK(*parse_size("1KB") == 1000);
  CHECK(*parse_size("2G") == std::uint64_t{2} << 30);
  for (const char* text : {"", "GB", "5gb", "-1", "1.5GB", "99999999999TB", "5GBx"})
    CHECK_FALSE(parse_size(text));
}

TEST_CASE("table: a control character never reaches the terminal", "[unit][cli]") {
  CHECK(printable("a\x1b[31mb\n") == "a?[31mb?");
  CHECK(printable("Gr\xc3\xb6\xc3\x9f"
                  "e") ==
        "Gr\xc3\xb6\xc3\x9f"
        "e");
}

TEST_CASE("table: times and counts are written as people say them", "[unit][cli]") {
  CHECK(counted("0", "step") == "no steps");
  CHECK(counted("1", "step") == "1 step");
  CHECK(counted("2", "step") == "2 steps");
  CHECK(human_seconds(0) == "0 s");
  CHECK(human_seconds(59) == "59 s");
  CHECK(human_seconds(60) == "1 min 0 s");
  CHECK(human_seconds(3600 * 3 + 300) == "3 h 5 min");
  CHECK(human_seconds(86'400 * 2) == "2 days 0 h");
  CHECK(human_date(0) == "-");
  CHECK(human_date(1'000'000'000) == "2001-09-09 01:46:40");
  CHECK(human_date(UINT64_MAX) == "-");
}

TEST_CASE("json_read: a missing field, or one of another type, is shown as a dash", "[unit][cli]") {
  const Json object = {{"text", "a"}, {"count", 3}, {"list", {1, "x"}}};
  CHECK(text_in(object, "text") == "a");
  CHECK(text_in(object, "count") == "-");
  CHECK(number_in(object, "count") == "3");
  CHECK(number_in(object, "none") == "-");
  CHECK(list_in(object, "list").empty());
  CHECK(object_in(object, "text").empty());
  CHECK(text_in(Json(), "text") == "-");
}

}  // namespace ckpt::cli
