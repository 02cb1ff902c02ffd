#include "os/path.hpp"

namespace ckpt::os {

namespace {

constexpr std::string_view mark = "/./";

std::string_view without_trailing_slashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

std::string beneath(std::string_view root, std::string_view name) {
  return std::string(without_trailing_slashes(root)).append(mark).append(name);
}

std::string join(std::string_view parent, std::string_view name) {
  return std::string(without_trailing_slashes(parent)).append("/").append(name);
}

std::string display(std::string_view path) {
  std::string shown(path);
  const auto at = shown.rfind(mark);
  if (at != std::string::npos) shown.replace(at, mark.size(), "/");
  if (shown.size() > 2 && shown.ends_with("/.")) shown.resize(shown.size() - 2);
  return shown;
}

std::string_view file_name(std::string_view path) {
  path = without_trailing_slashes(path);
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

Result<SplitPath> split(std::string_view path) {
  if (path.empty()) return fail(Errc::invalid_argument, "an empty path");
  if (path.find('\0') != std::string_view::npos) {
    return fail(Errc::invalid_argument, "a path with a NUL in it");
  }
  path = without_trailing_slashes(path);
  SplitPath parts;
  std::string_view rest;
  const auto at = path.rfind(mark);
  if (at != std::string_view::npos) {
    parts.root = at == 0 ? "/" : std::string(path.substr(0, at));
    rest = path.substr(at + mark.size());
  } else if (const auto slash = path.rfind('/'); slash == std::string_view::npos) {
    parts.root = ".";
    rest = path;
  } else {
    parts.root = slash == 0 ? "/" : std::string(path.substr(0, slash));
    rest = path.substr(slash + 1);
  }
  while (!rest.empty()) {
    const auto slash = rest.find('/');
    const std::string_view name = rest.substr(0, slash);
    rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
    if (name.empty() || name == ".") continue;
    if (name == ".." && at != std::string_view::npos) {
      return fail(Errc::invalid_argument, "\"..\" in " + display(path));
    }
    parts.names.emplace_back(name);
  }
  return parts;
}

}  // namespace ckpt::os
