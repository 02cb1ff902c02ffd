// EnvironmentCopy: the process's environment as it was at one moment.
//
// The environment has no lock: setenv on one thread frees what another one reads. A program may
// call it at any time on its own threads, as Python does for os.environ. So an entry point makes a
// copy on the program's thread, and our own threads read only that.
//
// Threads: any, but of_process() on the program's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::os {

class EnvironmentCopy {
 public:
  static EnvironmentCopy of_process();

  // Nothing: it is not set. An empty value is one.
  std::optional<std::string> find(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  void remove(std::string_view name);

  const std::vector<std::string>& entries() const { return entries_; }  // Each is NAME=value.

 private:
  std::vector<std::string> entries_;
};

}  // namespace ckpt::os
