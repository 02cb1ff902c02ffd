// SimCompute: a Compute of one thread and one seed. The work is done late, in an order that the
// seed draws, and never after the node that asked for it was killed.
#pragma once

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

#include "base/clock.hpp"
#include "base/compute.hpp"
#include "base/random.hpp"

namespace ckpt::test {

class SimCompute final : public Compute {
 public:
  SimCompute(Clock& clock, std::uint64_t seed,
             std::chrono::microseconds longest = std::chrono::milliseconds(3))
      : clock_(clock), longest_(longest), random_(seed) {}

  Task<void> run(std::function<void()> work) override {
    ++runs_;
    if (random_.one_in(4)) {
      const auto limit = static_cast<std::uint64_t>(longest_.count());
      const Time later =
          clock_.after(std::chrono::microseconds(static_cast<std::int64_t>(random_.below(limit))));
      CKPT_CO_CHECK(co_await sleep_until(clock_, later));
    } else {
      const asio::any_io_executor executor = co_await asio::this_coro::executor;
      co_await asio::post(executor, asio::use_awaitable);
    }
    work();
    co_return Status();
  }
  std::uint64_t runs() const { return runs_; }

 private:
  Clock& clock_;
  const std::chrono::microseconds longest_;
  Random random_;
  std::uint64_t runs_ = 0;
};

}  // namespace ckpt::test
