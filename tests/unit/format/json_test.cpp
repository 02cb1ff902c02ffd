// Goal:   our JSON reader accepts only JSON, and of it only what our files need.
// Method: cases by hand for each rule; then tens of thousands of damaged texts, where whatever it
//         accepts must be accepted, with the same meaning, by an independent parser.
#include "format/json.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/random.hpp"

namespace ckpt::format {

namespace {

using Tree = nlohmann::json;

// Any value; the reader has no peek, so each kind is tried on a copy.
Result<Tree> read_tree(JsonReader& reader) {
  JsonReader before = reader;
  if (auto text = reader.string()) return Tree(*text);
  reader = before;
  if (auto value = reader.integer()) return Tree(*value);
  reader = before;
  if (reader.begin_object()) {
    Tree tree = Tree::object();
    std::string key;
    while (true) {
      CKPT_TRY(const bool follows, reader.next_member(key));
      if (!follows) return tree;
      CKPT_TRY(tree[key], read_tree(reader));
    }
  }
  reader = before;
  CKPT_CHECK(reader.begin_array());
  Tree tree = Tree::array();
  while (true) {
    CKPT_TRY(const bool follows, reader.next_element());
    if (!follows) return tree;
    CKPT_TRY(auto element, read_tree(reader));
    tree.push_back(std::move(element));
  }
}

Result<Tree> parse(std::string_view text) {
  JsonReader reader(text, "text");
  CKPT_TRY(auto tree, read_tree(reader));
  CKPT_CHECK(reader.finish());
  return tree;
}

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

}  // namespace

TEST_CASE("json: our files' contents are read", "[unit][format]") {
  const std::string text = " {\"a\":[1 , 2],\"b\" : {} ,\n\"c\":\"x\\u00e9\\ud83d\\ude00\\n\"} \t";
  const auto tree = parse(text);
  REQUIRE(tree);
  CHECK(*tree == Tree::parse(text));
  CHECK(parse("18446744073709551615").value() == Tree(UINT64_MAX));
}

TEST_CASE("json: a text that is no JSON, or more than we need, is refused", "[unit][format]") {
  const std::string cases[] = {"",
                               " ",
                               "{",
                               "[1,]",
                               "[,1]",
                               "{\"a\":1,}",
                               "{\"a\" 1}",
                               "{a:1}",
                               "[1 2]",
                               "[1]]",
                               "[1}",
                               "01",
                               "-1",
                               "-0",
                               "1.0",
                               "1e3",
                               "+1",
                               "18446744073709551616",
                               "99999999999999999999999",
                               "true",
                               "null",
                               "NaN",
                               "\"a",
                               "\"\\x\"",
                               "\"\\u12g4\"",
                               "\"\\ud800\"",
                               "\"\\ud800\\u0041\"",
                               "\"\\udc00\"",
                               "\"a\nb\"",
                               std::string("\"a\0b\"", 5),
                               std::string("[1]\0", 4),
                               std::string("[1]\0x", 5),
                               "\xef\xbb\xbf[1]",
                               "[1] // x",
                               "\"\xff\"",
                               "\"\xc0\xaf\"",
                               "\"\xed\xa0\x80\"",
                               "\"\xf4\x90\x80\x80\"",
                               "\"\xe2\x82\"",
                               nested(json_depth_max + 1),
                               std::string(1'000'000, '[')};
  for (const auto& text : cases) {
    CAPTURE(text.substr(0, 40));
    const auto tree = parse(text);
    REQUIRE_FALSE(tree);
    CHECK(tree.error().code() == Errc::corruption);
  }
  CHECK(parse(nested(json_depth_max)));
}

TEST_CASE("json: any text that is written is read back", "[unit][format]") {
  std::string text;
  for (char letter = 1; letter < 127; ++letter) text += letter;
  text += std::string(1, '\0') + "\x7f \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  std::string json;
  append_json(json, text);
  CHECK(parse(json).value() == Tree(text));
  CHECK(Tree::parse(json) == Tree(text));
}

TEST_CASE("json: UTF-8 is judged as by an independent parser", "[unit][format]") {
  Random random(3);
  for (int round = 0; round < 50'000; ++round) {
    std::string text;
    const auto length = 1 + random.below(4);
    for (std::uint64_t index = 0; index < length; ++index)
      text += static_cast<char>(random.one_in(3) ? 0x80 + random.below(0x40) : random.below(256));
    std::string json = "\"";
    for (const char letter : text)
      if (static_cast<unsigned char>(letter) >= 0x80) json += letter;
    json += "\"";
    CHECK(is_utf8(json) == Tree::accept(json));
  }
}

TEST_CASE("json: no damaged text is understood otherwise than by another parser",
          "[unit][format]") {
  const std::string good =
      "{\"__metadata__\":{\"step\":\"007\"},\"w\\u00e9\":{\"dtype\":\"F32\",\"shape\":[2,10],"
      "\"data_offsets\":[0,80]}, \"b\":[[],{},18446744073709551615]}";
  REQUIRE(parse(good));
  Random random(7);
  const std::string_view alphabet = "{}[]\",:0123456789 \\ue-.\n";
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string text = good;
    const auto changes = 1 + random.below(3);
    for (std::uint64_t change = 0; change < changes; ++change) {
      const auto at = random.below(text.size());
      const auto letter = random.one_in(4) ? static_cast<char>(random.below(256))
                                           : alphabet[random.below(alphabet.size())];
      switch (random.below(3)) {
        case 0:
          text[at] = letter;
          break;
        case 1:
          text.insert(at, 1, letter);
          break;
        default:
          text.erase(at, 1 + random.below(3));
      }
    }
    const auto tree = parse(text);
    if (!tree) continue;
    ++accepted;
    CAPTURE(text);
    REQUIRE(Tree::accept(text));
    CHECK(*tree == Tree::parse(text));
  }
  CHECK(accepted > 300);
}

}  // namespace ckpt::format
