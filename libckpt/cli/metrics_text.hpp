// MetricsText: the metrics of a save, as the tools show them.
#pragma once

#include <string>

#include "cli/command.hpp"
#include "format/metrics.hpp"

namespace ckpt::cli {

// An object of names and numbers.
Json to_json(const format::Metrics& metrics);
// "accuracy=0.91 loss=0.0625"; empty for none.
std::string to_text(const format::Metrics& metrics);

}  // namespace ckpt::cli
