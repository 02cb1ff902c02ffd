// CapturedLog: takes the lines that are logged while it lives, in place of standard error. Only one
// lives at a time. Afterwards the log is as a program begins with it, for the tests behind.
#pragma once

#include <string>
#include <string_view>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace ckpt::test {

class CapturedLog {
 public:
  // Lines below `least` are not even made.
  explicit CapturedLog(LogLevel least = LogLevel::info) {
    CKPT_ASSERT(!is_alive);
    is_alive = true;
    text_.clear();
    Log::set_level(least);
    Log::set_sink([](LogLevel, std::string_view line) { text_.append(line).append("\n"); });
  }
  ~CapturedLog() {
    Log::set_sink(nullptr);
    Log::set_level(LogLevel::info);
    is_alive = false;
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  bool has(std::string_view words) const { return text_.find(words) != std::string::npos; }
  const std::string& text() const { return text_; }

 private:
  static inline std::string text_;
  static inline bool is_alive = false;
};

}  // namespace ckpt::test
