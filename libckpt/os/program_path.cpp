#include "os/program_path.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <string_view>

namespace ckpt::os {

namespace {

std::string directory_of(std::string path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  path.resize(slash == 0 ? 1 : slash);
  return path;
}

// That of the C library, for an environment without PATH.
constexpr std::string_view path_default = "/bin:/usr/bin";

bool may_run(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string program_directory() {
  char path[PATH_MAX] = {};
  const auto bytes = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  return bytes > 0 ? directory_of(std::string(path, static_cast<std::size_t>(bytes))) : "";
}

std::string library_directory(const void* address_within) {
  Dl_info info{};
  if (::dladdr(address_within, &info) == 0 || info.dli_fname == nullptr) return {};
  char path[PATH_MAX] = {};
  return ::realpath(info.dli_fname, path) != nullptr ? directory_of(path) : "";
}

Result<std::string> find_program(const std::string& program, const EnvironmentCopy& environment) {
  if (program.find('/') != std::string::npos) return program;
  const std::string path = environment.find("PATH").value_or(std::string(path_default));
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    // An empty part is the working directory.
    const std::string directory = end == begin ? "." : path.substr(begin, end - begin);
    std::string candidate = directory + '/' + program;
    if (may_run(candidate)) return candidate;
    begin = end + 1;
  }
  return fail(Errc::not_found, "find " + program + " in PATH " + path);
}

}  // namespace ckpt::os
