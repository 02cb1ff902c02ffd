// Fd: a file descriptor with one owner, which closes it.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <system_error>
#include <utility>

namespace ckpt::os {

class Fd {
 public:
  Fd() = default;
  // Takes ownership of `number`. A negative one means "none", so that a system call's result fits.
  explicit Fd(int number) : number_(number < 0 ? -1 : number) {}
  Fd(Fd&& other) noexcept : number_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }

  // Gives up ownership without closing.
  [[nodiscard]] int release() { return std::exchange(number_, -1); }
  void reset(int number = -1);
  // Duplicates the descriptor, with close-on-exec. Errors: exhausted, io.
  Result<Fd> dup() const;

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  explicit operator bool() const { return is_open(); }

 private:
  int number_ = -1;
};

// Duplicates a descriptor that is only borrowed.
Result<Fd> duplicate(int borrowed);

// The cause of the system call that has just failed.
std::error_code last_system_error();
// Reports a failed system call: exhausted if a limit of descriptors or memory was reached, else io.
Unexpected fail_system(std::string attempted, std::error_code cause = last_system_error(),
                       std::source_location where = std::source_location::current());

}  // namespace ckpt::os
