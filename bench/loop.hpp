// Loop: a context with a clock, on which a benchmark runs one coroutine at a time to its end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

#include "base/clock.hpp"
#include "base/spawn.hpp"

namespace bench {

class Loop {
 public:
  template <class T>
  ckpt::Result<T> run(ckpt::Task<T> task) {
    std::optional<ckpt::Result<T>> result;
    ckpt::spawn_into(context.get_executor(), std::move(task), result);
    context.restart();
    while (!result && context.run_one() > 0) {
    }
    return std::move(result).value();
  }

  boost::asio::io_context context{1};
  std::unique_ptr<ckpt::Clock> clock = ckpt::make_system_clock(context.get_executor());
};

}  // namespace bench
