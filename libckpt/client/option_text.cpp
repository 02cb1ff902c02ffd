#include "client/option_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include "base/byte_text.hpp"

namespace ckpt::client {

namespace {

struct Unit {
  std::string_view name;
  std::uint64_t size;
};
constexpr std::array duration_units = {Unit{"h", 3'600'000}, Unit{"min", 60'000}, Unit{"s", 1'000},
                                       Unit{"ms", 1}};

// Takes the digits at the front; none: there are none, or too many.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<std::uint64_t> in_units(std::uint64_t value, std::string_view name,
                                      std::span<const Unit> units) {
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end() || value > std::numeric_limits<std::int64_t>::max() / unit->size)
    return std::nullopt;
  return value * unit->size;
}

std::string show_in_units(std::uint64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units)
    if (value != 0 && value % unit.size == 0)
      return fmt::format("{}{}", value / unit.size, unit.name);
  return fmt::format("{}", value);
}

Unexpected expected(std::string_view what) {
  return fail(Errc::invalid_argument, fmt::format("expected {}", what));
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

bool is_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view port = text.substr(colon + 1);
  const auto number = take_number(port);
  const bool has_space = text.find_first_of(" \t") != std::string_view::npos;
  return number && port.empty() && *number >= 1 && *number <= 65'535 && !has_space;
}

}  // namespace

std::string_view trim(std::string_view text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t most) {
  std::string_view rest = trim(text);
  const auto value = take_number(rest);
  if (!value || !rest.empty() || *value > most)
    return expected(fmt::format("a whole number from 0 to {}", most));
  return *value;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  if (const auto bytes = parse_byte_text(trim(text))) return *bytes;
  return expected(fmt::format("a number of bytes such as {}", byte_examples));
}

Result<bool> parse_bool(std::string_view text) {
  std::string word(trim(text));
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view yes : {"1", "true", "yes", "on"})
    if (word == yes) return true;
  for (const std::string_view no : {"0", "false", "no", "off", ""})
    if (word == no) return false;
  return expected("1 or 0, true or false, yes or no, on or off");
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  std::string_view rest = trim(text);
  const auto value = take_number(rest);
  const auto total = value ? in_units(*value, trim(rest), duration_units) : std::nullopt;
  if (!total) return expected("a duration such as 250ms, 60s, 15min or 2h");
  return std::chrono::milliseconds(*total);
}

Result<std::vector<KeepInterval>> parse_keep_intervals(std::string_view text) {
  constexpr std::string_view until = " until ";
  std::vector<KeepInterval> intervals;
  for (std::string_view rest = trim(text); !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    const std::size_t word = one.find(until);
    const auto every = parse_count(one.substr(0, word), UINT64_MAX);
    if (!every) return expected("intervals such as 5000, or 1000 until 10000, 5000");
    KeepInterval& interval = intervals.emplace_back(KeepInterval{*every, {}});
    if (word != std::string_view::npos) {
      const auto last = parse_count(one.substr(word + until.size()), UINT64_MAX);
      if (!last) return expected("the number of a step behind \"until\"");
      interval.until = *last;
    }
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
    if (trim(rest).empty()) return expected("an interval behind the comma");
  }
  return intervals;
}

Result<std::vector<Node>> parse_nodes(std::string_view text) {
  std::vector<Node> nodes;
  for (std::string_view rest = trim(text); !rest.empty();) {
    const std::size_t comma = rest.find(',');
    CKPT_TRY(Node node, Node::parse(trim(rest.substr(0, comma))));
    nodes.push_back(std::move(node));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return nodes;
}

std::string show_bytes(std::uint64_t bytes) {
  return show_byte_text(bytes);
}

std::string show_duration(std::chrono::milliseconds duration) {
  if (duration.count() == 0) return "0s";
  return show_in_units(static_cast<std::uint64_t>(duration.count()), duration_units);
}

std::string show_interval(const Interval& interval) {
  if (interval.is_never()) return "never";
  if (interval.steps == 0 && interval.is_automatic()) return "automatic";
  if (interval.steps > 0) return fmt::format("{}", interval.steps);
  return show_duration(interval.time);
}

std::string show_keep_intervals(const std::vector<KeepInterval>& intervals) {
  std::string out;
  for (const KeepInterval& interval : intervals) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{}", interval.every);
    if (interval.until) out += fmt::format(" until {}", *interval.until);
  }
  return out;
}

std::string show_nodes(const std::vector<Node>& nodes) {
  std::string out;
  for (const Node& node : nodes) {
    if (!out.empty()) out += ",";
    out += node.name;
    if (!node.address.empty()) out += "@" + node.address;
    if (!node.failure_domain.empty() && node.failure_domain != node.name)
      out += "/" + node.failure_domain;
  }
  return out;
}

}  // namespace ckpt::client

namespace ckpt {

Result<Interval> Interval::parse(std::string_view text) {
  const std::string_view word = client::trim(text);
  if (word == "never") return Interval::never();
  if (auto steps = client::parse_count(word, UINT64_MAX)) return Interval{*steps, {}};
  if (auto time = client::parse_duration(word)) return Interval{0, *time};
  return fail(Errc::invalid_argument,
              fmt::format("\"{}\" is not an interval: expected a number of steps such as 100, a "
                          "duration such as 15min, or never",
                          text));
}

Result<Node> Node::parse(std::string_view text) {
  const auto refuse = [&](std::string_view problem) {
    return fail(Errc::invalid_argument,
                fmt::format("node \"{}\": {}; expected name@host:port/failure-domain, the domain "
                            "may be left out",
                            text, problem));
  };
  Node node;
  std::string_view rest = client::trim(text);
  if (const std::size_t slash = rest.rfind('/'); slash != std::string_view::npos) {
    node.failure_domain = rest.substr(slash + 1);
    if (node.failure_domain.empty()) return refuse("its failure domain is empty");
    rest = rest.substr(0, slash);
  }
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    node.address = rest.substr(at + 1);
    if (!client::is_address(node.address)) return refuse("its address is not host:port");
    rest = rest.substr(0, at);
  }
  node.name = rest;
  if (!client::is_name(node.name)) return refuse("a name is 1 to 128 of [A-Za-z0-9._-]");
  if (node.failure_domain.empty()) node.failure_domain = node.name;
  return node;
}

}  // namespace ckpt
