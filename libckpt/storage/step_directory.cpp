#include "storage/step_directory.hpp"

#include <fmt/format.h>

#include <charconv>

namespace ckpt::storage {

namespace {

// Takes a number off the front. The caller checks its spelling by writing it again.
std::optional<std::uint64_t> take_number(std::string_view& text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string step_directory_name(Step step, std::uint32_t generation) {
  const std::string name = fmt::format("step-{:09}", number(step));
  return generation == 1 ? name : fmt::format("{}.g{}", name, generation);
}

std::optional<StepDirectory> parse_step_directory(std::string_view name) {
  std::string_view rest = name;
  StepDirectory parsed;
  if (!take_prefix(rest, "step-")) return std::nullopt;
  const auto step = take_number(rest, 10);
  if (!step) return std::nullopt;
  parsed.step = Step{*step};
  if (take_prefix(rest, ".g")) {
    const auto generation = take_number(rest, 10);
    if (!generation || *generation < 2 || *generation > generations_max) return std::nullopt;
    parsed.generation = static_cast<std::uint32_t>(*generation);
  }
  if (step_directory_name(parsed.step, parsed.generation) != name) return std::nullopt;
  return parsed;
}

std::string work_directory_name(format::StepId at, std::uint64_t attempt) {
  return fmt::format(".step-{:09}.t{}.{:016x}", number(at.step), at.timeline, attempt);
}

std::optional<WorkDirectory> parse_work_directory(std::string_view name) {
  std::string_view rest = name;
  if (!take_prefix(rest, ".step-")) return std::nullopt;
  const auto step = take_number(rest, 10);
  if (!step || !take_prefix(rest, ".t")) return std::nullopt;
  const auto timeline = take_number(rest, 10);
  if (!timeline || !take_prefix(rest, ".")) return std::nullopt;
  const auto attempt = take_number(rest, 16);
  if (!attempt) return std::nullopt;
  WorkDirectory parsed;
  parsed.at.timeline = *timeline;
  parsed.at.step = Step{*step};
  parsed.attempt = *attempt;
  if (work_directory_name(parsed.at, parsed.attempt) != name) return std::nullopt;
  return parsed;
}

std::string timeline_claim_name(std::uint64_t timeline) {
  return fmt::format("timeline-{}", timeline);
}

std::optional<std::uint64_t> parse_timeline_claim(std::string_view name) {
  std::string_view rest = name;
  if (!take_prefix(rest, "timeline-")) return std::nullopt;
  const auto timeline = take_number(rest, 10);
  if (!timeline || timeline_claim_name(*timeline) != name) return std::nullopt;
  return timeline;
}

std::string turn_name(std::string_view name, std::uint32_t turn) {
  return turn == 0 ? std::string(name) : fmt::format("{}.t{}", name, turn);
}

std::string_view without_turn(std::string_view name) {
  const std::size_t dot = name.rfind(".t");
  if (dot == std::string_view::npos) return name;
  std::string_view rest = name.substr(dot + 2);
  const auto turn = take_number(rest, 10);
  const auto stem = name.substr(0, dot);
  const bool is_turn = turn && *turn > 0 && *turn <= UINT32_MAX &&
                       turn_name(stem, static_cast<std::uint32_t>(*turn)) == name;
  return is_turn ? stem : name;
}

std::string aside_name(std::string_view stem, std::uint64_t attempt) {
  return fmt::format("{}.{:016x}", stem, attempt);
}

bool is_aside_name(std::string_view name, std::string_view stem) {
  std::string_view rest = name;
  if (!take_prefix(rest, stem) || !take_prefix(rest, ".")) return false;
  const auto attempt = take_number(rest, 16);
  return attempt && aside_name(stem, *attempt) == name;
}

}  // namespace ckpt::storage
