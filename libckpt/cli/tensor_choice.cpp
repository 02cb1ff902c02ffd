#include "cli/tensor_choice.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::cli {

namespace {

constexpr std::size_t names_shown = 4;

}  // namespace

bool is_chosen(const TensorChoice& choice, std::string_view name) {
  // Without the prefix a name must be left.
  if (!choice.strip.empty() &&
      (!name.starts_with(choice.strip) || name.size() == choice.strip.size()))
    return false;
  if (choice.globs.empty()) return true;
  const std::string text(name);
  return std::ranges::any_of(choice.globs, [&](const std::string& glob) {
    return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
  });
}

std::string chosen_name(const TensorChoice& choice, std::string_view name) {
  CKPT_ASSERT(name.starts_with(choice.strip));
  return std::string(name.substr(choice.strip.size()));
}

Error nothing_chosen(const TensorChoice& choice, const std::vector<gather::ListedTensor>& tensors) {
  if (tensors.empty()) return Error(Errc::not_found, "the checkpoint has no tensors");
  std::string wanted;
  for (const std::string& glob : choice.globs)
    wanted += fmt::format("{}\"{}\"", wanted.empty() ? "" : " or ", glob);
  if (!choice.strip.empty())
    wanted += fmt::format("{}\"{}*\"", wanted.empty() ? "" : " and ", choice.strip);
  std::string there;
  for (std::size_t index = 0; index < std::min(names_shown, tensors.size()); ++index)
    there += fmt::format("{}\"{}\"", there.empty() ? "" : ", ", tensors[index].name);
  if (tensors.size() > names_shown)
    there += fmt::format(" and {} more", tensors.size() - names_shown);
  return Error(Errc::not_found, fmt::format("no tensor matches {}; there are {}", wanted, there));
}

}  // namespace ckpt::cli
