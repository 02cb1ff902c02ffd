#include "cli/daemon_environment.hpp"

#include <array>
#include <optional>
#include <string_view>

namespace ckpt::cli {

namespace {

constexpr std::array names{"AWS_ENDPOINT_URL_S3",
                           "AWS_ENDPOINT_URL",
                           "AWS_REGION",
                           "AWS_DEFAULT_REGION",
                           "AWS_ACCESS_KEY_ID",
                           "AWS_SECRET_ACCESS_KEY",
                           "AWS_SESSION_TOKEN",
                           "AWS_PROFILE",
                           "AWS_SHARED_CREDENTIALS_FILE",
                           "AWS_CONFIG_FILE",
                           "AWS_CA_BUNDLE",
                           "LIBCKPT_S3_ADDRESSING",
                           "LIBCKPT_GS_ENDPOINT",
                           "LIBCKPT_GS_ACCESS_KEY_ID",
                           "LIBCKPT_GS_SECRET_ACCESS_KEY"};

// Nothing: it is not set, or empty.
std::optional<std::string> value_in(std::string_view texts, std::string_view name) {
  while (!texts.empty()) {
    const std::string_view text = texts.substr(0, texts.find('\0'));
    texts.remove_prefix(std::min(text.size() + 1, texts.size()));
    const bool is_it =
        text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=';
    if (is_it && text.size() > name.size() + 1) return std::string(text.substr(name.size() + 1));
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> differing_variables(const std::string& theirs,
                                             const bucket::Environment& ours) {
  std::vector<std::string> found;
  for (const char* name : names) {
    const auto there = value_in(theirs, name), here = ours.variable(name);
    if (there == here) continue;
    const char* how = !there ? " is not set" : !here ? " is set" : " is another one";
    found.push_back(std::string(name) + how);
  }
  return found;
}

}  // namespace ckpt::cli
