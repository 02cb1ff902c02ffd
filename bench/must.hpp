// must: returns a result's value, or prints the error and ends the benchmark.
#pragma once

#include <ckpt/result.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace bench {

[[noreturn]] inline void give_up(const std::string& text) {
  std::fprintf(stderr, "bench: %s\n", text.c_str());
  std::exit(2);
}

template <class T>
T must(ckpt::Result<T> result) {
  if (!result) give_up(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

}  // namespace bench
