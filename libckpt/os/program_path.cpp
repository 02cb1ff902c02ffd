#include "os/program_path.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace ckpt::os {

namespace {

std::string directory_of(std::string path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  path.resize(slash == 0 ? 1 : slash);
  return path;
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

}  // namespace ckpt::os
