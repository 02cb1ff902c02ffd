// Error: a failure, classified by the reaction that it asks for.
//
// Errc names the reaction and not the cause; the cause travels as a std::error_code. The text names
// the attempted action and its object: "write rank-3 chunk 17 of step 900".
#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace ckpt {

enum class Errc {
  invalid_argument = 1,  // The caller must change the request.
  not_found,             // It does not exist; normal at a job's first start.
  corruption,            // Bytes failed verification: try another source.
  io,                    // Storage, network or kernel refused; the cause says how.
  unavailable,           // Not now: retry later.
  exhausted,             // A named limit was reached.
  cancelled,             // Our side ended the operation.
  unsupported,           // This machine or this version cannot do it.
  version_mismatch,      // The other side, or the file, speaks another version.
};

constexpr std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid argument";
    case Errc::not_found:
      return "not found";
    case Errc::corruption:
      return "corruption";
    case Errc::io:
      return "i/o";
    case Errc::unavailable:
      return "unavailable";
    case Errc::exhausted:
      return "exhausted";
    case Errc::cancelled:
      return "cancelled";
    case Errc::unsupported:
      return "unsupported";
    case Errc::version_mismatch:
      return "version mismatch";
  }
  return "unknown";
}

// Not an aggregate on purpose: g++ 12 destroys braced aggregate temporaries twice in coroutines.
class Error {
 public:
  Error(Errc code, std::string text, std::error_code cause = {},
        std::source_location where = std::source_location::current())
      : code_(code), text_(std::move(text)), cause_(cause), where_(where) {}

  Errc code() const { return code_; }
  const std::string& text() const { return text_; }
  std::error_code cause() const { return cause_; }
  const std::source_location& where() const { return where_; }

  // Adds what the caller was doing: "flush step 900: write rank-3: ...".
  Error context(std::string_view doing) && {
    text_ = std::string(doing) + ": " + text_;
    return std::move(*this);
  }

  // "corruption: read step 900: chunk 17 does not match its checksum (No such file)".
  std::string message() const {
    std::string out = std::string(to_string(code_)) + ": " + text_;
    if (cause_) out += " (" + cause_.message() + ")";
    return out;
  }

 private:
  Errc code_;
  std::string text_;
  std::error_code cause_;
  std::source_location where_;
};

}  // namespace ckpt
