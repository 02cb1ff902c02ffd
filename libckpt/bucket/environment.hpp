// Environment: the variables, and the two profile files that AWS programs read, behind one seam.
//
// Threads: any.
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

  static Environment of_process();
};

using Section = std::map<std::string, std::string>;
// "[name]" and "key = value" lines; lines indented below a key belong to it and are left out.
std::map<std::string, Section> parse_profiles(std::string_view text);

// The profile that AWS_PROFILE names, else `default`: keys of the configuration file, and over them
// those of the credentials file.
Section read_profile(const Environment& environment);

}  // namespace ckpt::bucket
