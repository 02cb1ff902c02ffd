#include "client/saved_names.hpp"

#include <fmt/format.h>

#include <set>

namespace ckpt::client {

namespace {

// Whether the name begins with `words`, and with no part of a word more. A bracket begins what says
// which part of a tensor it is.
bool begins_with(std::string_view name, std::string_view words) {
  if (!name.starts_with(words)) return false;
  return name.size() == words.size() ||
         std::string_view("./[").find(name[words.size()]) != std::string_view::npos;
}

// The longest rule counts. `from` and `to`: the side of a rule that is looked for, and the other.
std::string replaced(const SavedNames::Rules& rules, std::string_view name,
                     std::string SavedNames::Rules::value_type::* from,
                     std::string SavedNames::Rules::value_type::* to) {
  const SavedNames::Rules::value_type* best = nullptr;
  for (const auto& rule : rules) {
    const bool is_longer = best == nullptr || (rule.*from).size() > (best->*from).size();
    if (is_longer && begins_with(name, rule.*from)) best = &rule;
  }
  if (best == nullptr) return std::string(name);
  return best->*to + std::string(name.substr((best->*from).size()));
}

}  // namespace

Result<SavedNames> SavedNames::from(Rules rules) {
  std::set<std::string> there, here;
  for (const auto& [saved, name] : rules) {
    if (saved.empty() || name.empty())
      return fail(Errc::invalid_argument,
                  fmt::format("restore: renamed: \"{}\" to \"{}\": a name is empty", saved, name));
    if (!there.insert(saved).second || !here.insert(name).second)
      return fail(Errc::invalid_argument,
                  fmt::format("restore: renamed: two rules for \"{}\" or \"{}\"", saved, name));
  }
  return SavedNames(std::move(rules));
}

Result<std::string> SavedNames::of(std::string_view here) const {
  using Rule = Rules::value_type;
  std::string saved = replaced(rules_, here, &Rule::second, &Rule::first);
  const std::string back = replaced(rules_, saved, &Rule::first, &Rule::second);
  if (back == here) return saved;
  return fail(Errc::invalid_argument,
              fmt::format("restore: tensor \"{}\" has no name in the checkpoint: \"{}\" there is "
                          "\"{}\" here",
                          here, saved, back));
}

Result<std::vector<format::TensorSpec>> SavedNames::of(
    std::vector<format::TensorSpec> tensors) const {
  for (format::TensorSpec& tensor : tensors) {
    CKPT_TRY(tensor.name, of(std::string_view(tensor.name)));
    if (tensor.alias_of.empty()) continue;
    CKPT_TRY(tensor.alias_of, of(std::string_view(tensor.alias_of)));
  }
  return tensors;
}

}  // namespace ckpt::client
