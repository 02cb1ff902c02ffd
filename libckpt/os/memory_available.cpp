#include "os/memory_available.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/units.hpp"

namespace ckpt::os {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text.data() + start, text.data() + text.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

// The number after `key` at the start of a line, as in "MemAvailable:  123 kB".
std::optional<std::uint64_t> field_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return number_in(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

// The file names in one version of cgroups.
struct CgroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* reclaimable_field;
};
constexpr CgroupFiles version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                   "inactive_file "};
constexpr CgroupFiles version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file "};

// The room left in one group; max if it has no limit ("max" is no number) or cannot be read.
std::uint64_t left_in(const std::string& directory, const CgroupFiles& files) {
  const auto limit = number_in(text_of(directory + '/' + files.limit));
  const auto usage = number_in(text_of(directory + '/' + files.usage));
  if (!limit || !usage) return UINT64_MAX;
  if (*limit >= std::uint64_t{1} << 60) return UINT64_MAX;  // "No limit" in version 1.
  const auto cache = field_of(text_of(directory + "/memory.stat"), files.reclaimable_field);
  const std::uint64_t used = *usage - std::min(*usage, cache.value_or(0));
  return *limit - std::min(*limit, used);
}

// Every ancestor's limit applies. In a container the path may not be visible, but then the mount
// itself is the container's own group.
std::uint64_t left_in_chain(const std::string& root, std::string path, const CgroupFiles& files) {
  const std::string mount = root + files.mount;
  std::uint64_t left = left_in(mount, files);
  while (path.size() > 1) {
    left = std::min(left, left_in(mount + path, files));
    path.resize(path.rfind('/'));
  }
  return left;
}

std::uint64_t cgroup_bytes_left(const std::string& root) {
  std::uint64_t left = UINT64_MAX;
  // Each line is "number:controllers:path"; version 2 has number 0 and no controllers.
  std::istringstream lines(text_of(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    const std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,") left = std::min(left, left_in_chain(root, path, version_2));
    if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_chain(root, path, version_1));
    }
  }
  return left;
}

}  // namespace

Result<MemoryAvailable> memory_available(const std::string& root) {
  const std::string machine = text_of(root + "/proc/meminfo");
  const auto available = field_of(machine, "MemAvailable:");
  const auto total = field_of(machine, "MemTotal:");
  if (!available || !total) {
    return fail(Errc::unsupported, "read the memory available from " + root + "/proc/meminfo");
  }
  MemoryAvailable memory;
  memory.machine_bytes = *available * KiB;
  memory.machine_bytes_total = *total * KiB;
  memory.cgroup_bytes = cgroup_bytes_left(root);
  memory.bytes = std::min(memory.machine_bytes, memory.cgroup_bytes);
  return memory;
}

}  // namespace ckpt::os
