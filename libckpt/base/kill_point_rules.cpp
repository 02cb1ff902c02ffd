#include "base/kill_point_rules.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace ckpt::detail {

namespace {

std::optional<PointAction> action_named(std::string_view name) {
  if (name == "kill") return PointAction::kill;
  if (name == "stop") return PointAction::stop;
  if (name == "log") return PointAction::log;
  if (name == "abort") return PointAction::abort;
  if (name == "pause") return PointAction::pause;
  return std::nullopt;
}

Result<PointRule> parse_rule(std::string_view text) {
  const auto refused = [text](std::string_view why) {
    return fail(Errc::invalid_argument,
                fmt::format("rule \"{}\" of LIBCKPT_POINTS: {}", text, why));
  };
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) return refused("is not label=action");
  PointRule rule;
  rule.label = text.substr(0, equals);
  std::string_view action = text.substr(equals + 1);
  if (const std::size_t at = action.find('@'); at != std::string_view::npos) {
    const std::string_view count = action.substr(at + 1);
    const char* end = count.data() + count.size();
    const auto parsed = std::from_chars(count.data(), end, rule.at_hit);
    if (parsed.ec != std::errc() || parsed.ptr != end || rule.at_hit == 0) {
      return refused("the count after @ is not a number from 1");
    }
    action = action.substr(0, at);
  }
  const auto known = action_named(action);
  if (!known) return refused("the action is none of kill, stop, log, abort, pause");
  rule.action = *known;
  return rule;
}

}  // namespace

Result<std::vector<PointRule>> parse_point_rules(std::string_view text) {
  std::vector<PointRule> rules;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    if (part.empty()) continue;
    CKPT_TRY(PointRule rule, parse_rule(part));
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace ckpt::detail
