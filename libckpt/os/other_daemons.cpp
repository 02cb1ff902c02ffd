#include "os/other_daemons.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "os/small_file.hpp"

namespace ckpt::os {

namespace {

constexpr std::size_t texts_bytes_max = 4u << 20;  // Beyond any command and environment.
// Its control thread's, by which the kernel names the process; the program's until that is set.
constexpr std::string_view names[] = {"ckptd-ctl\n", "ckptd\n"};

bool is_our_daemon(const std::string& process) {
  struct stat status{};
  if (::stat(process.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  const auto name = read_file(process + "/comm", 64);
  return name && std::ranges::find(names, *name) != std::end(names);
}

std::vector<std::string> texts_of(const std::string& path) {
  std::vector<std::string> texts;
  const auto content = read_file(path, texts_bytes_max);
  if (!content) return texts;
  for (std::size_t begin = 0; begin < content->size();) {
    const std::size_t end = std::min(content->find('\0', begin), content->size());
    texts.push_back(content->substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

std::string runtime_dir_of(const std::string& process) {
  constexpr std::string_view flag = "--runtime-dir", variable = "LIBCKPT_RUNTIME_DIR=";
  std::string found;
  for (const std::string& text : texts_of(process + "/environ"))
    if (text.starts_with(variable)) found = text.substr(variable.size());
  // The flag beats the environment, and the last one counts.
  const std::vector<std::string> command = texts_of(process + "/cmdline");
  for (std::size_t index = 0; index < command.size(); ++index) {
    const std::string& text = command[index];
    if (text == flag && index + 1 < command.size()) found = command[index + 1];
    if (text.starts_with(flag) && text.substr(flag.size()).starts_with('='))
      found = text.substr(flag.size() + 1);
  }
  while (found.size() > 1 && found.back() == '/') found.pop_back();
  return found;
}

std::optional<pid_t> pid_of(const std::string& name) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return pid;
}

}  // namespace

std::vector<OtherDaemon> other_daemons(const std::string& runtime_dir, const std::string& proc) {
  std::vector<OtherDaemon> found;
  std::error_code error;
  std::filesystem::directory_iterator each(proc, error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
    const auto pid = pid_of(each->path().filename());
    if (!pid || !is_our_daemon(each->path())) continue;
    OtherDaemon daemon{*pid, runtime_dir_of(each->path())};
    if (daemon.runtime_dir != runtime_dir) found.push_back(std::move(daemon));
  }
  std::ranges::sort(found, {}, &OtherDaemon::pid);
  return found;
}

}  // namespace ckpt::os
