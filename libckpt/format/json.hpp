// Json: the strict part of JSON that our files and safetensors headers need, read step by step.
//
// The caller asks a JsonReader for the element it expects next, so that a file of millions of
// entries needs no tree. It is stricter than JSON: integers are unsigned 64-bit and never
// fractions, a decimal has the one form that append_decimal gives it, nesting is at most
// `json_depth_max`, text is UTF-8. The caller refuses repeated keys, since only it knows the keys
// it has seen.
#pragma once

#include <array>
#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::format {

inline constexpr std::size_t json_depth_max = 8;

bool is_utf8(std::string_view text);
// Appends `text` with its quotes; control characters, '"' and '\' are escaped. Needs UTF-8.
void append_json(std::string& out, std::string_view text);
void append_json(std::string& out, std::uint64_t value);
// The shortest text that reads back as the same number. Needs a finite one.
void append_decimal(std::string& out, double value);

class JsonReader {
 public:
  // Both texts are borrowed. `what` appears in errors: "manifest.json".
  JsonReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  // Errors of this and all following calls: corruption (something else stands there), with the
  // offset.
  Status begin_object() { return begin('{'); }
  Status begin_array() { return begin('['); }
  // True: a member follows, and `key` is its name. False: the object has ended.
  Result<bool> next_member(std::string& key);
  // True: an element follows. False: the array has ended.
  Result<bool> next_element() { return next(']'); }
  // The next member must be this one: for files whose members have a fixed order.
  Status member(std::string_view key);
  Status end_object();
  Status end_array();

  Result<std::string> string();
  Result<std::uint64_t> integer();
  Result<double> decimal();

  // member() and its value in one call.
  Result<std::string> string_member(std::string_view key);
  Result<std::uint64_t> integer_member(std::string_view key, std::uint64_t most = UINT64_MAX);
  // Calls `read_one`, which returns a Status, before each element of the array.
  template <class ReadOne>
  Status array_member(std::string_view key, ReadOne read_one) {
    CKPT_CHECK(member(key));
    CKPT_CHECK(begin_array());
    while (true) {
      CKPT_TRY(const bool follows, next_element());
      if (!follows) return {};
      CKPT_CHECK(read_one());
    }
  }

  // Errors if anything but white space is left.
  Status finish();

  Unexpected problem(std::string_view text) const;

 private:
  void skip_space();
  Status begin(char opening);
  Result<bool> next(char closing);
  Status expect(char wanted);
  Status append_escape(std::string& out);
  Result<std::uint32_t> four_digits();

  std::string_view text_;
  std::string_view what_;
  std::size_t offset_ = 0;
  std::size_t depth_ = 0;
  std::array<bool, json_depth_max> is_first_{};  // One for each open object or array.
};

}  // namespace ckpt::format
