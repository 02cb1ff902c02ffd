// InChild: runs a check in a forked child, for what holds for the rest of a process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "base/assert.hpp"

namespace ckpt::test {

// Returns what the check returned; a child that died otherwise is named.
inline std::string in_child(const std::function<std::string()>& check) {
  int ends[2] = {-1, -1};
  CKPT_ASSERT(::pipe(ends) == 0);
  const pid_t child = ::fork();
  CKPT_ASSERT(child >= 0);
  if (child == 0) {
    const std::string text = check();
    const auto written = ::write(ends[1], text.data(), text.size());
    std::_Exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char letters[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], letters, sizeof letters)) > 0;)
    text.append(letters, static_cast<std::size_t>(count));
  ::close(ends[0]);
  int status = 0;
  CKPT_ASSERT(::waitpid(child, &status, 0) == child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) text += " (the child died)";
  return text;
}

}  // namespace ckpt::test
