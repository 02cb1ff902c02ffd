#include "os/environment_copy.hpp"

#include <unistd.h>

#include <algorithm>

namespace ckpt::os {

namespace {

bool is_of(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace

EnvironmentCopy EnvironmentCopy::of_process() {
  EnvironmentCopy copy;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry)
    copy.entries_.emplace_back(*entry);
  return copy;
}

std::optional<std::string> EnvironmentCopy::find(std::string_view name) const {
  // The first one counts, as for getenv.
  const auto found =
      std::ranges::find_if(entries_, [&](const std::string& entry) { return is_of(entry, name); });
  if (found == entries_.end()) return std::nullopt;
  return found->substr(name.size() + 1);
}

void EnvironmentCopy::set(std::string_view name, std::string_view value) {
  remove(name);
  entries_.push_back(std::string(name) + '=' + std::string(value));
}

void EnvironmentCopy::remove(std::string_view name) {
  std::erase_if(entries_, [&](const std::string& entry) { return is_of(entry, name); });
}

}  // namespace ckpt::os
