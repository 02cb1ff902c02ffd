// Failure: an Error of the library on its way to Python, where each Errc has a class of its own.
#pragma once

#include <ckpt/result.hpp>
#include <exception>
#include <string>
#include <utility>

namespace ckpt::python {

class Failure : public std::exception {
 public:
  Failure(Errc code, std::string text) : code_(code), text_(std::move(text)) {}
  explicit Failure(const Error& error) : Failure(error.code(), error.message()) {}

  Errc code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Errc code_;
  std::string text_;
};

inline void check(const Status& status) {
  if (!status) throw Failure(status.error());
}
template <class T>
T take(Result<T> result) {
  if (!result) throw Failure(result.error());
  return std::move(result).value();
}

// Makes nanobind turn a Failure into the class of libckpt.errors.
void register_failures();

}  // namespace ckpt::python
