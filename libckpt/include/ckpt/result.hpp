// Result: a value or an Error, with the part of std::expected's interface that we use.
//
// C++23 can replace Result<T> by an alias of std::expected<T, Error>, and no caller has to
// change.
#pragma once

#include <ckpt/error.hpp>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>

namespace ckpt {

class Unexpected {
 public:
  explicit Unexpected(Error error) : error_(std::move(error)) {}
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
};

// BadResult: a value was taken that is not there.
struct BadResult : std::logic_error {
  using std::logic_error::logic_error;
};

// The way to fail: `return fail(Errc::corruption, "chunk 17 does not match its checksum");`.
inline Unexpected fail(Errc code, std::string text, std::error_code cause = {},
                       std::source_location where = std::source_location::current()) {
  return Unexpected(Error(code, std::move(text), cause, where));
}
inline Unexpected fail(Error error) {
  return Unexpected(std::move(error));
}

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = Error;

  Result()
    requires std::is_default_constructible_v<T>
      : state_(std::in_place_index<0>) {}
  template <class U = T>
    requires(!std::is_same_v<std::remove_cvref_t<U>, Result> &&
             !std::is_same_v<std::remove_cvref_t<U>, Unexpected> && std::is_constructible_v<T, U>)
  Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Unexpected failure) : state_(std::in_place_index<1>, std::move(failure).error()) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Without a value: throws a BadResult with the error's text.
  T& value() & {
    check();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    check();
    return *std::get_if<0>(&state_);
  }
  T&& value() && { return std::move(value()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  void check() const {
    if (!has_value()) throw BadResult(error().message());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = Error;

  Result() = default;
  Result(Unexpected failure) : error_(std::move(failure).error()) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const {}

  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace ckpt

#define CKPT_CONCAT_INNER(a, b) a##b
#define CKPT_CONCAT(a, b) CKPT_CONCAT_INNER(a, b)

// CKPT_TRY(auto slot, find_slot(step)): the value, or an early return of the error.
#define CKPT_TRY(decl, expr) CKPT_TRY_INNER(CKPT_CONCAT(ckpt_result_, __LINE__), return, decl, expr)
#define CKPT_CHECK(expr)                                                   \
  do {                                                                     \
    auto ckpt_status = (expr);                                             \
    if (!ckpt_status) return ::ckpt::fail(std::move(ckpt_status).error()); \
  } while (false)

// The same for coroutines: `expr` is usually a co_await, which stands alone in its statement.
#define CKPT_CO_TRY(decl, expr) \
  CKPT_TRY_INNER(CKPT_CONCAT(ckpt_result_, __LINE__), co_return, decl, expr)
#define CKPT_CO_CHECK(expr)                                                   \
  do {                                                                        \
    auto ckpt_status = (expr);                                                \
    if (!ckpt_status) co_return ::ckpt::fail(std::move(ckpt_status).error()); \
  } while (false)

#define CKPT_TRY_INNER(name, return_keyword, decl, expr)           \
  auto name = (expr);                                              \
  if (!name) return_keyword ::ckpt::fail(std::move(name).error()); \
  decl = std::move(name).value()
