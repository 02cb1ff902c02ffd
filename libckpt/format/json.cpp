#include "format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/assert.hpp"

namespace ckpt::format {

namespace {

// The length of the UTF-8 sequence at `offset`, or 0: cut off, overlong, surrogate or too large.
std::size_t utf8_length(std::string_view text, std::size_t offset) {
  const auto at = [&](std::size_t index) {
    return static_cast<unsigned char>(index < text.size() ? text[index] : 0);
  };
  const unsigned first = at(offset);
  const unsigned second = at(offset + 1);
  const auto continues = [&](std::size_t from, std::size_t until) {
    for (std::size_t index = from; index < until; ++index)
      if ((at(offset + index) & 0xc0u) != 0x80u) return false;
    return true;
  };
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(1, 2) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if (first == 0xe0 && second < 0xa0) return 0;
    if (first == 0xed && second > 0x9f) return 0;
    return continues(1, 3) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if (first == 0xf0 && second < 0x90) return 0;
    if (first == 0xf4 && second > 0x8f) return 0;
    return continues(1, 4) ? 4 : 0;
  }
  return 0;
}

// Letters that need no escape: the common case, decided without a function call per character.
constexpr bool is_plain(char letter) {
  const auto value = static_cast<unsigned char>(letter);
  return value >= 0x20 && value < 0x80 && letter != '"' && letter != '\\';
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto push = [&](std::uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xc0 | (code >> 6));
    push(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    push(0xe0 | (code >> 12));
    push(0x80 | ((code >> 6) & 0x3f));
    push(0x80 | (code & 0x3f));
  } else {
    push(0xf0 | (code >> 18));
    push(0x80 | ((code >> 12) & 0x3f));
    push(0x80 | ((code >> 6) & 0x3f));
    push(0x80 | (code & 0x3f));
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t offset = 0; offset < text.size();) {
    if (is_plain(text[offset])) {
      ++offset;
      continue;
    }
    const std::size_t length = utf8_length(text, offset);
    if (length == 0) return false;
    offset += length;
  }
  return true;
}

void append_json(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  const auto stands_for_itself = [](char letter) {
    return is_plain(letter) || static_cast<unsigned char>(letter) >= 0x80;
  };
  out.push_back('"');
  for (std::size_t offset = 0; offset < text.size();) {
    const std::size_t start = offset;
    while (offset < text.size() && stands_for_itself(text[offset])) ++offset;
    out.append(text, start, offset - start);
    if (offset == text.size()) break;
    const auto letter = static_cast<unsigned char>(text[offset++]);
    out.push_back('\\');
    if (letter < 0x20) {
      out += "u00";
      out.push_back(hex[letter >> 4]);
      out.push_back(hex[letter & 0xf]);
    } else {
      out.push_back(static_cast<char>(letter));
    }
  }
  out.push_back('"');
}

void append_json(std::string& out, std::uint64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

void append_decimal(std::string& out, double value) {
  CKPT_ASSERT(std::isfinite(value));
  out += fmt::format("{}", value);
}

Unexpected JsonReader::problem(std::string_view text) const {
  return fail(Errc::corruption, fmt::format("{}: {} at byte {}", what_, text, offset_));
}

void JsonReader::skip_space() {
  while (offset_ < text_.size()) {
    const char letter = text_[offset_];
    if (letter != ' ' && letter != '\n' && letter != '\r' && letter != '\t') return;
    ++offset_;
  }
}

Status JsonReader::expect(char wanted) {
  skip_space();
  if (offset_ >= text_.size() || text_[offset_] != wanted)
    return problem(fmt::format("expected '{}'", wanted));
  ++offset_;
  return {};
}

Status JsonReader::begin(char opening) {
  if (depth_ == json_depth_max) return problem("nested too deeply");
  CKPT_CHECK(expect(opening));
  is_first_[depth_++] = true;
  return {};
}

Result<bool> JsonReader::next(char closing) {
  CKPT_ASSERT(depth_ > 0);
  skip_space();
  if (offset_ < text_.size() && text_[offset_] == closing) {
    ++offset_;
    --depth_;
    return false;
  }
  if (!is_first_[depth_ - 1]) CKPT_CHECK(expect(','));
  is_first_[depth_ - 1] = false;
  return true;
}

Result<bool> JsonReader::next_member(std::string& key) {
  CKPT_TRY(const bool follows, next('}'));
  if (!follows) return false;
  CKPT_TRY(key, string());
  CKPT_CHECK(expect(':'));
  return true;
}

Status JsonReader::member(std::string_view key) {
  std::string found;
  CKPT_TRY(const bool follows, next_member(found));
  if (!follows || found != key) return problem(fmt::format("expected the member \"{}\"", key));
  return {};
}

Status JsonReader::end_object() {
  CKPT_TRY(const bool follows, next('}'));
  if (follows) return problem("a member too many");
  return {};
}

Status JsonReader::end_array() {
  CKPT_TRY(const bool follows, next(']'));
  if (follows) return problem("an element too many");
  return {};
}

Result<std::string> JsonReader::string() {
  CKPT_CHECK(expect('"'));
  std::string out;
  while (true) {
    const std::size_t start = offset_;
    while (offset_ < text_.size() && is_plain(text_[offset_])) ++offset_;
    out.append(text_, start, offset_ - start);
    if (offset_ >= text_.size()) return problem("a text without an end");
    const char letter = text_[offset_];
    if (letter == '"') break;
    if (static_cast<unsigned char>(letter) < 0x20) return problem("a control character in a text");
    if (letter == '\\') {
      CKPT_CHECK(append_escape(out));
      continue;
    }
    const std::size_t length = utf8_length(text_, offset_);
    if (length == 0) return problem("bytes that are not UTF-8");
    out.append(text_, offset_, length);
    offset_ += length;
  }
  ++offset_;
  return out;
}

Status JsonReader::append_escape(std::string& out) {
  ++offset_;  // The backslash.
  const char letter = offset_ < text_.size() ? text_[offset_] : '\0';
  ++offset_;
  switch (letter) {
    case '"':
    case '\\':
    case '/':
      out.push_back(letter);
      return {};
    case 'b':
      out.push_back('\b');
      return {};
    case 'f':
      out.push_back('\f');
      return {};
    case 'n':
      out.push_back('\n');
      return {};
    case 'r':
      out.push_back('\r');
      return {};
    case 't':
      out.push_back('\t');
      return {};
    case 'u':
      break;
    default:
      return problem("an unknown escape");
  }
  CKPT_TRY(std::uint32_t code, four_digits());
  if (code >= 0xd800 && code <= 0xdfff) {
    // Characters above U+FFFF come as a high and a low surrogate, each an escape of its own.
    const bool is_high = code <= 0xdbff;
    if (!is_high || text_.substr(std::min(offset_, text_.size()), 2) != "\\u")
      return problem("half a surrogate pair");
    offset_ += 2;
    CKPT_TRY(const std::uint32_t low, four_digits());
    if (low < 0xdc00 || low > 0xdfff) return problem("half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(out, code);
  return {};
}

Result<std::uint32_t> JsonReader::four_digits() {
  std::uint32_t code = 0;
  for (int index = 0; index < 4; ++index, ++offset_) {
    const char digit = offset_ < text_.size() ? text_[offset_] : '\0';
    code <<= 4;
    if (digit >= '0' && digit <= '9') {
      code |= static_cast<std::uint32_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      code |= static_cast<std::uint32_t>(digit - 'a') + 10;
    } else if (digit >= 'A' && digit <= 'F') {
      code |= static_cast<std::uint32_t>(digit - 'A') + 10;
    } else {
      return problem("an escape without four digits");
    }
  }
  return code;
}

Result<std::uint64_t> JsonReader::integer() {
  skip_space();
  const std::size_t start = offset_;
  std::uint64_t value = 0;
  while (offset_ < text_.size() && text_[offset_] >= '0' && text_[offset_] <= '9') {
    const auto digit = static_cast<std::uint64_t>(text_[offset_] - '0');
    if (value > (UINT64_MAX - digit) / 10) return problem("an integer above 64 bits");
    value = value * 10 + digit;
    ++offset_;
  }
  const std::size_t digits = offset_ - start;
  if (digits == 0) return problem("expected an integer that is not negative");
  if (digits > 1 && text_[start] == '0') return problem("an integer with a leading zero");
  return value;
}

Result<double> JsonReader::decimal() {
  skip_space();
  const std::size_t length =
      std::min(text_.find_first_not_of("+-.0123456789e", offset_), text_.size()) - offset_;
  const std::string_view digits = text_.substr(offset_, length);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool is_whole = error == std::errc() && end == digits.data() + digits.size();
  if (!is_whole || fmt::format("{}", value) != digits) return problem("expected a number");
  offset_ += length;
  return value;
}

Result<std::string> JsonReader::string_member(std::string_view key) {
  CKPT_CHECK(member(key));
  return string();
}

Result<std::uint64_t> JsonReader::integer_member(std::string_view key, std::uint64_t most) {
  CKPT_CHECK(member(key));
  CKPT_TRY(const auto value, integer());
  if (value > most) return problem(fmt::format("\"{}\" is {}, above {}", key, value, most));
  return value;
}

Status JsonReader::finish() {
  skip_space();
  if (depth_ != 0 || offset_ != text_.size()) return problem("bytes behind the end");
  return {};
}

}  // namespace ckpt::format
