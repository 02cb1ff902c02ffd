// Metrics: numbers that a trainer gives with a save, such as its validation loss.
//
// They travel with the shard of each rank as a blob. Publishing copies those of rank 0 into the
// manifest, where retention reads them. Only finite numbers are kept.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "format/json.hpp"

namespace ckpt::format {

using Metrics = std::map<std::string, double, std::less<>>;

inline constexpr std::string_view metrics_blob_name = "libckpt.metrics";
inline constexpr std::size_t metrics_max = 32;
inline constexpr std::size_t metric_name_bytes_max = 128;
// Thirty-two names in which every byte is escaped, and their numbers.
inline constexpr std::size_t metrics_bytes_max = 32u << 10;

// Errors: invalid_argument.
Status check_metric_name(std::string_view name);

// The bytes of the blob: a sealed text, so that a reader needs no checksum beside it.
std::string render(const Metrics& metrics);
// Errors: corruption, version_mismatch.
Result<Metrics> parse_metrics(std::string_view text);

// An object of names and numbers, as the blob and the manifest have it.
void append_json(std::string& out, const Metrics& metrics);
Result<Metrics> read_metrics(JsonReader& reader);

}  // namespace ckpt::format
