#include "os/machine.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "base/units.hpp"

namespace ckpt::os {

namespace {

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// A file that holds one number. "max", of v2, is no limit.
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse_number(word);
}

std::optional<std::uint64_t> machine_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, value;
  for (std::string line; std::getline(file, line);) {
    std::istringstream(line) >> key >> value;
    if (key != "MemAvailable:") continue;
    const auto kibibytes = parse_number(value);
    if (kibibytes) return *kibibytes * KiB;
  }
  return std::nullopt;
}

struct GroupFiles {
  std::string root, limit, usage, droppable;
};

// The line "name number" of memory.stat.
std::uint64_t read_statistic(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key, value;
  while (file >> key >> value) {
    if (key == name) return parse_number(value).value_or(0);
  }
  return 0;
}

// Free in one group: its limit less its use, without the cache that the kernel drops at once.
std::uint64_t group_bytes(const std::string& directory, const GroupFiles& files) {
  const auto limit = read_number(directory + "/" + files.limit);
  const auto usage = read_number(directory + "/" + files.usage);
  if (!limit || !usage) return std::numeric_limits<std::uint64_t>::max();
  const auto droppable = read_statistic(directory + "/memory.stat", files.droppable);
  const auto used = *usage - std::min(*usage, droppable);
  return *limit > used ? *limit - used : 0;
}

// Our group and all around it, from lines such as "0::/user.slice" and "4:memory:/job".
std::uint64_t groups_bytes() {
  static const GroupFiles v2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
  static const GroupFiles v1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                             "memory.usage_in_bytes", "total_inactive_file"};
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers.find("memory") == std::string::npos) continue;
    const GroupFiles& files = controllers.empty() ? v2 : v1;
    std::string path = line.substr(second + 1);
    while (true) {
      least = std::min(least, group_bytes(files.root + path, files));
      const auto slash = path.rfind('/');
      if (slash == std::string::npos || path.empty()) break;
      path.resize(slash);
    }
  }
  return least;
}

std::string directory_of(std::string path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  path.resize(std::max<std::size_t>(slash, 1));
  return path;
}

}  // namespace

std::uint64_t available_memory_bytes() {
  return std::min(machine_bytes().value_or(0), groups_bytes());
}

std::uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) return raised.rlim_cur;
  }
  return limit.rlim_cur;
}

void name_this_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

std::string program_directory() {
  char path[PATH_MAX] = {};
  const auto bytes = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  return bytes > 0 ? directory_of(std::string(path, static_cast<std::size_t>(bytes))) : "";
}

std::string library_directory(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  char path[PATH_MAX] = {};
  return ::realpath(info.dli_fname, path) != nullptr ? directory_of(path) : "";
}

}  // namespace ckpt::os
