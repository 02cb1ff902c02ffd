#include "os/completion.hpp"

namespace ckpt::os {

asio::awaitable<std::int64_t> await_completion(StartWork start) {
  auto initiate = [](auto handler, StartWork begin) {
    using Handler = decltype(handler);
    begin(std::make_unique<detail::PostedCompletion<Handler>>(std::move(handler)));
  };
  const std::int64_t result =
      co_await asio::async_initiate<const asio::use_awaitable_t<>, void(std::int64_t)>(
          initiate, asio::use_awaitable, std::move(start));
  co_return result;
}

}  // namespace ckpt::os
