// PickleWriter: a pickle, instruction by instruction.
//
// The instructions are those of protocol 2 (PEP 307); each is one letter.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.hpp"

namespace ckpt::format {

class PickleWriter {
 public:
  PickleWriter() {
    op('\x80');  // The protocol.
    little(2, 1);
  }

  void op(char letter) { bytes_.push_back(letter); }
  void mark() { op('('); }
  void tuple() { op('t'); }  // Takes all items since the mark.
  void little(std::uint64_t value, std::size_t bytes) {
    for (std::size_t index = 0; index < bytes; ++index)
      bytes_.push_back(static_cast<char>(value >> (8 * index)));
  }
  void text(std::string_view value) {
    CKPT_ASSERT(value.size() <= UINT32_MAX);
    op('X');
    little(value.size(), 4);
    bytes_ += value;
  }
  void integer(std::uint64_t value) {
    CKPT_ASSERT(value <= INT64_MAX);
    if (value <= UINT8_MAX) {
      op('K');
      little(value, 1);
    } else if (value <= INT32_MAX) {
      op('J');
      little(value, 4);
    } else {
      op('\x8a');
      little(8, 1);
      little(value, 8);
    }
  }
  void numbers(std::span<const std::uint64_t> values) {
    mark();
    for (const std::uint64_t value : values) integer(value);
    tuple();
  }
  // "torch.FloatStorage": the module, and what it has.
  void name(std::string_view full) {
    const std::size_t dot = full.rfind('.');
    CKPT_ASSERT(dot != std::string_view::npos);
    op('c');
    bytes_ += full.substr(0, dot);
    op('\n');
    bytes_ += full.substr(dot + 1);
    op('\n');
  }
  // The same, for names that come often: they are written once, and then referred to.
  void shared_name(std::string_view full) {
    if (recall(full)) return;
    name(full);
    memorize(full);
  }
  void shared_text(std::string_view value) {
    const std::string key = fmt::format("'{}'", value);  // No name is quoted.
    if (recall(key)) return;
    text(value);
    memorize(key);
  }
  // An object of a class, made as copy.copy() makes one: without its constructor. Its attributes
  // follow between `mark` and `end_object`, as pairs.
  void begin_object(std::string_view class_name) {
    shared_name(class_name);
    op(')');     // An empty tuple.
    op('\x81');  // The class's __new__ is called with it.
    op('}');
    mark();
  }
  void end_object() {
    op('u');
    op('b');
  }
  std::vector<std::byte> take() {
    op('.');
    const auto bytes = std::as_bytes(std::span(bytes_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  bool recall(std::string_view key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return false;
    op('j');
    little(found->second, 4);
    return true;
  }
  void memorize(std::string_view key) {
    op('r');
    little(memo_.size(), 4);
    memo_.emplace(key, memo_.size());
  }

  std::string bytes_;
  std::map<std::string, std::size_t, std::less<>> memo_;
};

}  // namespace ckpt::format
