// Task: what a good header looks like.
#pragma once

namespace ckpt {

// A comment may speak of co_await in an if, of a Manager and of { braces }.
Task<int> answer(int question);

}  // namespace ckpt
