#include "bucket/environment.hpp"

#include <fmt/format.h>

#include <memory>

#include "os/environment_copy.hpp"
#include "os/small_file.hpp"

namespace ckpt::bucket {

namespace {

constexpr std::size_t file_bytes_max = 1u << 20;  // Profile files and tokens have some KiB.

std::string_view trim(std::string_view text) {
  constexpr std::string_view spaces = " \t\r";
  const auto begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

std::string home_file(const Environment& environment, const char* named_by, const char* name) {
  if (auto path = environment.variable(named_by)) return *path;
  return environment.variable("HOME").value_or("") + "/.aws/" + name;
}

}  // namespace

Environment Environment::of_process() {
  Environment environment;
  const auto copy = std::make_shared<const os::EnvironmentCopy>(os::EnvironmentCopy::of_process());
  environment.variable = [copy](const std::string& name) -> std::optional<std::string> {
    auto value = copy->find(name);
    if (value && value->empty()) value.reset();
    return value;
  };
  environment.file = [](const std::string& path) -> std::optional<std::string> {
    auto text = os::read_file(path, file_bytes_max);
    if (!text) return std::nullopt;
    return std::move(text).value();
  };
  return environment;
}

Environment Environment::of_daemon(int pid, const std::string& since) {
  Environment environment = of_process();
  environment.name =
      fmt::format("the environment of the daemon (ckptd, process {}, since {})", pid, since);
  environment.remedy =
      "; the daemon keeps the environment of the trainer that started it: after a change, `ckpt "
      "stop` ends it, and the next trainer starts one with its own";
  return environment;
}

std::map<std::string, Section> parse_profiles(std::string_view text) {
  std::map<std::string, Section> sections;
  Section* section = nullptr;
  while (!text.empty()) {
    const std::string_view raw = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(raw.size() + 1, text.size()));
    const std::string_view line = trim(raw);
    const bool is_indented = !raw.empty() && (raw.front() == ' ' || raw.front() == '\t');
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const auto end = line.find(']');
      section = end == std::string_view::npos
                    ? nullptr
                    : &sections[std::string(trim(line.substr(1, end - 1)))];
      continue;
    }
    const auto equals = line.find('=');
    if (section == nullptr || is_indented || equals == std::string_view::npos) continue;
    (*section)[std::string(trim(line.substr(0, equals)))] = trim(line.substr(equals + 1));
  }
  return sections;
}

Section read_profile(const Environment& environment) {
  const std::string name = environment.variable("AWS_PROFILE").value_or("default");
  Section profile;
  const auto add = [&](const std::string& path, const std::string& section) {
    const auto text = environment.file(path);
    if (!text) return;
    const auto sections = parse_profiles(*text);
    const auto found = sections.find(section);
    if (found == sections.end()) return;
    for (const auto& [key, value] : found->second) profile[key] = value;
  };
  const std::string configuration = home_file(environment, "AWS_CONFIG_FILE", "config");
  add(configuration, name == "default" ? name : "profile " + name);
  if (name == "default") add(configuration, "profile default");
  add(home_file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name);
  return profile;
}

}  // namespace ckpt::bucket
