#include "client/save_metrics.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string>

#include "base/log.hpp"

namespace ckpt::client {

SaveMetrics::SaveMetrics(BlobStore& blobs, bool are_expected) : blobs_(blobs) {
  if (are_expected) put({});
}

Status SaveMetrics::set(std::string_view name, double value) {
  CKPT_CHECK(format::check_metric_name(name));
  const auto found = metrics_.find(name);
  if (!std::isfinite(value)) {
    if (found != metrics_.end()) metrics_.erase(found);
    return {};
  }
  if (found == metrics_.end() && metrics_.size() == format::metrics_max)
    return fail(Errc::exhausted,
                fmt::format("metric \"{}\": a save has at most {}", name, format::metrics_max));
  metrics_.insert_or_assign(std::string(name), value);
  return {};
}

void SaveMetrics::give_to_save() {
  const bool is_there = blobs_.find(format::metrics_blob_name).has_value();
  if (metrics_.empty() && !is_there) return;
  put(metrics_.empty() ? std::string() : format::render(metrics_));
  metrics_.clear();
}

void SaveMetrics::put(std::string_view text) {
  const Status set = blobs_.set(std::string(format::metrics_blob_name),
                                std::as_bytes(std::span(text.data(), text.size())));
  if (!set) log_warning("metrics are not saved: {}", set.error().message());
}

}  // namespace ckpt::client
