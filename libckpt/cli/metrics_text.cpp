#include "cli/metrics_text.hpp"

#include <fmt/format.h>

namespace ckpt::cli {

Json to_json(const format::Metrics& metrics) {
  Json json = Json::object();
  for (const auto& [name, value] : metrics) json[name] = value;
  return json;
}

std::string to_text(const format::Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics)
    text += fmt::format("{}{}={:.6g}", text.empty() ? "" : " ", name, value);
  return text;
}

}  // namespace ckpt::cli
