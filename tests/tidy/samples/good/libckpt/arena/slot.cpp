#include <mutex>

#include "arena/slot.hpp"
#include "base/task.hpp"
#include "format/layout.hpp"

namespace ckpt {

Task<int> answer(int question) {
  if (question == 0) co_return fail(Errc::not_found, "ask { something }");
  co_await first(question);
  auto value = co_await second(question);
  const Result<std::vector<int>> many = co_await third(question);
  CKPT_CO_TRY(auto next, co_await fourth(question, value));
  CKPT_CO_TRY(const std::map<int, int> table, co_await fourth(question, value));
  CKPT_CO_CHECK(co_await fifth(next));
  for (;;) {
    auto [error, bytes] = co_await sixth(question, use_awaitable);
    if (error) break;
    value = co_await second(bytes);
    if (value == 4) answer.result = co_await second(bytes);
    if (value == 3) CKPT_CO_CHECK(co_await fifth(value));
  }
  switch (question) {
    case 1:
      co_await first(question);
      break;
    default:
      (void)co_await first(question);
  }
  run_detached(executor, [](int number) -> DetachedTask { co_await first(number); }(question));
  std::vector<int> numbers{1, 2, 3};
  std::sort(numbers.begin(), numbers.end(), [&](int a, int b) { return a < b; });
  co_return value;
}

}  // namespace ckpt
