// Task: a coroutine on Asio that ends in a Result.
//
// The rules for g++ 12, which `tests/tidy` checks: co_await stands alone in its statement, with no
// brace and no capturing lambda among its arguments; parameters are taken by value.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ckpt/result.hpp>

namespace ckpt {

namespace asio = boost::asio;

template <class T>
using Task = asio::awaitable<Result<T>>;

// A detached coroutine: it returns nothing, since it handles its own errors.
using DetachedTask = asio::awaitable<void>;

}  // namespace ckpt
