// TensorChoice: which tensors of a checkpoint a command is about, and under which names.
#pragma once

#include <ckpt/result.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gather/tensor_list.hpp"

namespace ckpt::cli {

// A name is chosen if it matches some glob, or there are none, and begins with `strip`.
struct TensorChoice {
  std::vector<std::string> globs;  // As the shell has them; `*` goes over dots and slashes too.
  std::string strip;               // Chosen names begin with this, and lose it.
};

bool is_chosen(const TensorChoice& choice, std::string_view name);
// The name without what is stripped.
std::string chosen_name(const TensorChoice& choice, std::string_view name);

// Names some of those that are there. For a choice that leaves nothing.
Error nothing_chosen(const TensorChoice& choice, const std::vector<gather::ListedTensor>& tensors);

}  // namespace ckpt::cli
