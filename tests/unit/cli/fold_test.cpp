// Goal:   long lines are broken between words, and nothing is lost.
// Method: short texts, narrow widths.
#include "cli/fold.hpp"

#include <catch2/catch.hpp>

namespace ckpt::cli {

TEST_CASE("fold: lines that fit stay as they are", "[unit][cli]") {
  CHECK(folded("a b c\n\n  d\n", 5) == "a b c\n\n  d\n");
  CHECK(folded("a b c d", 0) == "a b c d");
  CHECK(folded("", 5).empty());
}

TEST_CASE("fold: a long line goes on below its last column", "[unit][cli]") {
  CHECK(folded("one two three\n", 8) == "one two\nthree\n");
  CHECK(folded("  one two three", 9) == "  one two\n    three");
  CHECK(folded("  -a      what it does here now", 24) ==
        "  -a      what it does\n          here now");
  CHECK(folded("l\xc3\xa9ng l\xc3\xa9ng", 9) == "l\xc3\xa9ng l\xc3\xa9ng");
}

TEST_CASE("fold: a word that is too long stays whole", "[unit][cli]") {
  CHECK(folded("a/long/path and more", 6) == "a/long/path\nand\nmore");
  CHECK(folded("x a/long/path", 6) == "x\na/long/path");
}

TEST_CASE("fold: paragraphs of a help text are divided anew", "[unit][cli]") {
  const std::string word(30, 'w');
  CHECK(folded_help("one\ntwo\n\nthree\n  four\nfive\n") == "one two\n\nthree\n  four\nfive\n");
  CHECK(folded_help(word + " " + word + "\n" + word + "\nend\n") ==
        word + " " + word + "\n" + word + " end\n");
}

}  // namespace ckpt::cli
