// Environment: the variables, and the two profile files that AWS programs read, behind one seam.
//
// Threads: any, but of_process() and of_daemon() on the program's: they copy the variables.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::bucket {

struct Environment {
  // Nothing: it is not set, or empty.
  std::function<std::optional<std::string>(const std::string& name)> variable;
  // Nothing: there is no such file, or it cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> file;
  // For errors: whose variables these are, and how another value of one gets there.
  std::string name = "the environment";
  std::string remedy;  // Empty, or a part of a sentence that begins with "; ".

  static Environment of_process();
  // The same, of this process as a daemon: it has what the trainer had that started it, and nobody
  // sees that. `since`: when it started, for people.
  static Environment of_daemon(int pid, const std::string& since);
};

using Section = std::map<std::string, std::string>;
// "[name]" and "key = value" lines; lines indented below a key belong to it and are left out.
std::map<std::string, Section> parse_profiles(std::string_view text);

// The profile that AWS_PROFILE names, else `default`: keys of the configuration file, and over them
// those of the credentials file.
Section read_profile(const Environment& environment);

}  // namespace ckpt::bucket
