// StepDirectory: the names below a job's directory, made and read; nothing else.
//
//   step-000000123                       a published checkpoint
//   step-000000123.g2                    the same step, published again where no exchange exists
//   .step-000000123.t2.00112233aabbccdd  being written, or being deleted: never a checkpoint
//   .latest.00112233aabbccdd             a new `latest` that is not in place yet
//   .libckpt/                            run.json, timelines.json, retention.json, log.jsonl
//
// A name that is not exactly what we would have made is foreign, and never touched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/shard_record.hpp"

namespace ckpt::storage {

inline constexpr std::string_view latest_name = "latest";
inline constexpr std::string_view private_directory_name = ".libckpt";
inline constexpr std::string_view run_marker_name = ".libckpt/run.json";
inline constexpr std::string_view timelines_name = ".libckpt/timelines.json";
inline constexpr std::string_view retention_name = ".libckpt/retention.json";
inline constexpr std::string_view log_name = ".libckpt/log.jsonl";
inline constexpr std::string_view log_folder_name = ".libckpt/log";  // In a bucket.

// Re-saves of one step on a file system without exchange; each replaces the previous one.
inline constexpr std::uint32_t generations_max = 100;

struct StepDirectory {
  Step step{};
  std::uint32_t generation = 1;
  bool operator==(const StepDirectory&) const = default;
};
std::string step_directory_name(Step step, std::uint32_t generation = 1);
std::optional<StepDirectory> parse_step_directory(std::string_view name);

struct WorkDirectory {
  format::StepId at;
  std::uint64_t attempt = 0;  // Random, so that no two attempts share a name.
  bool operator==(const WorkDirectory&) const = default;
};
std::string work_directory_name(format::StepId at, std::uint64_t attempt);
std::optional<WorkDirectory> parse_work_directory(std::string_view name);

// The file in the private directory that names the Start of the timeline.
std::string timeline_claim_name(std::uint64_t timeline);
std::optional<std::uint64_t> parse_timeline_claim(std::string_view name);

// The name in a work directory of a file of the rank's part, written in this turn. Files of turn 0,
// by the first writer, have their final names; a later writer's get them when they are published.
std::string turn_name(std::string_view name, std::uint32_t turn);  // "rank-00001.safetensors.t2"
std::string_view without_turn(std::string_view name);

// A temporary file's name before its rename: ".latest.<hex>", "run.json.<hex>".
std::string aside_name(std::string_view stem, std::uint64_t attempt);
bool is_aside_name(std::string_view name, std::string_view stem);

}  // namespace ckpt::storage
