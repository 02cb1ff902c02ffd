#include "format/metrics.hpp"

#include <fmt/format.h>

#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view metrics_format = "libckpt-metrics";

bool is_metric_name(std::string_view name) {
  return !name.empty() && name.size() <= metric_name_bytes_max && is_utf8(name);
}

}  // namespace

Status check_metric_name(std::string_view name) {
  if (is_metric_name(name)) return {};
  return fail(Errc::invalid_argument, fmt::format("metric \"{}\": a name is 1 to {} bytes of UTF-8",
                                                  name.substr(0, 100), metric_name_bytes_max));
}

std::string render(const Metrics& metrics) {
  std::string out = begin_sealed_json(metrics_format);
  out += "\"metrics\":";
  append_json(out, metrics);
  out += ",\n";
  return seal_json(std::move(out));
}

Result<Metrics> parse_metrics(std::string_view text) {
  CKPT_TRY(auto reader, open_sealed_json(text, metrics_format, metrics_blob_name));
  CKPT_CHECK(reader.member("metrics"));
  CKPT_TRY(auto metrics, read_metrics(reader));
  CKPT_CHECK(finish_sealed_json(reader));
  return metrics;
}

void append_json(std::string& out, const Metrics& metrics) {
  out += "{";
  for (const auto& [name, value] : metrics) {
    if (out.back() != '{') out += ",";
    append_json(out, std::string_view(name));
    out += ":";
    append_decimal(out, value);
  }
  out += "}";
}

Result<Metrics> read_metrics(JsonReader& reader) {
  Metrics metrics;
  CKPT_CHECK(reader.begin_object());
  std::string name;
  while (true) {
    CKPT_TRY(const bool follows, reader.next_member(name));
    if (!follows) return metrics;
    if (metrics.size() == metrics_max) return reader.problem("too many metrics");
    if (!is_metric_name(name)) return reader.problem("a metric's name that is not allowed");
    CKPT_TRY(const double value, reader.decimal());
    if (!metrics.emplace(name, value).second) return reader.problem("a metric that is there twice");
  }
}

}  // namespace ckpt::format
