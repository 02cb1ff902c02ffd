// CheckpointName: the name that a checkpoint has for people: "step-000000900".
#pragma once

#include <ckpt/tensor.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::storage {

std::string checkpoint_name(Step step);
// None: no checkpoint has such a name. A step that was saved again may have another name besides.
std::optional<Step> step_named(std::string_view name);
// Whether libckpt has something of its own under this name in a run's directory, besides steps.
bool is_of_run(std::string_view name);

}  // namespace ckpt::storage
