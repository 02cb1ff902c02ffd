// SavedNames: the names under which registered tensors were saved, where those were others.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::client {

class SavedNames {
 public:
  using Rules = std::vector<std::pair<std::string, std::string>>;  // RestoreRequest::renamed.

  SavedNames() = default;
  // Errors: invalid_argument (an empty name, or two rules for one name).
  static Result<SavedNames> from(Rules rules);

  bool empty() const { return rules_.empty(); }
  // The name of a registered tensor in the checkpoint. Errors: invalid_argument (by the rules,
  // nothing there is called so here).
  Result<std::string> of(std::string_view here) const;
  // Gives the tensors, and those that they are tied to, the names that they have there.
  Result<std::vector<format::TensorSpec>> of(std::vector<format::TensorSpec> tensors) const;

 private:
  explicit SavedNames(Rules rules) : rules_(std::move(rules)) {}

  Rules rules_;  // From names there to names here.
};

}  // namespace ckpt::client
