// Loop: a context with a clock, on which a benchmark runs one coroutine at a time to its end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <exception>
#include <memory>
#include <optional>

#include "base/clock.hpp"

namespace bench {

class Loop {
 public:
  template <class T>
  ckpt::Result<T> run(ckpt::Task<T> task) {
    std::optional<ckpt::Result<T>> result;
    ckpt::asio::co_spawn(context, std::move(task),
                         [&](std::exception_ptr error, ckpt::Result<T> value) {
                           if (error) std::rethrow_exception(error);
                           result.emplace(std::move(value));
                         });
    context.restart();
    while (!result && context.run_one() > 0) {
    }
    return std::move(result).value();
  }

  boost::asio::io_context context{1};
  std::unique_ptr<ckpt::Clock> clock = ckpt::make_system_clock(context.get_executor());
};

}  // namespace bench
