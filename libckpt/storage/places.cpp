#include "storage/places.hpp"

#include <fmt/format.h>

#include <charconv>

namespace ckpt::storage {

namespace {

constexpr std::string_view every_word = "every";

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// "s3://bucket", and what the library refuses by name later.
bool begins_with_scheme(std::string_view text) {
  const std::size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return false;
  return text.substr(0, colon).find_first_of("/ ,\t") == std::string_view::npos;
}

bool separates(std::string_view behind_comma) {
  return behind_comma.empty() || is_blank(behind_comma.front()) || behind_comma.front() == '/' ||
         begins_with_scheme(behind_comma);
}

std::vector<std::string_view> split_places(std::string_view text) {
  std::vector<std::string_view> places;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',' || !separates(text.substr(at + 1))) continue;
    places.push_back(trim(text.substr(begin, at - begin)));
    begin = at + 1;
  }
  places.push_back(trim(text.substr(begin)));
  return places;
}

Unexpected refuse(std::string_view text, std::string_view problem) {
  return fail(Errc::invalid_argument, fmt::format("read the places \"{}\": {}", text, problem));
}

// Words of a place: its path, and what stands behind `every`; none: there is no `every`.
struct Words {
  std::string_view path;
  std::optional<std::string_view> every;
};

Words words_of(std::string_view place) {
  for (std::size_t at = place.find(every_word); at != std::string_view::npos;
       at = place.find(every_word, at + 1)) {
    const std::string_view behind = place.substr(at + every_word.size());
    const bool is_word =
        at > 0 && is_blank(place[at - 1]) && (behind.empty() || is_blank(behind.front()));
    if (is_word) return {trim(place.substr(0, at)), trim(behind)};
  }
  return {place, {}};
}

std::string_view without_slash(std::string_view path) {
  return path.substr(0, path.find_last_not_of('/') + 1);
}

struct Unit {
  std::string_view name;
  std::uint64_t seconds;
};
constexpr Unit units[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86'400}};

std::optional<Pace> parse_pace(std::string_view text) {
  Pace pace;
  const char* const end = text.data() + text.size();
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  constexpr std::uint64_t most = 1'000'000'000;  // In days: no sum of seconds overflows.
  if (error != std::errc() || value == 0 || value > most) return {};
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (unit.empty()) {
    pace.steps = value;
    return pace;
  }
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    pace.steps = 0;
    pace.time = std::chrono::seconds(value * known.seconds);
    return pace;
  }
  return {};
}

}  // namespace

std::string to_string(const Pace& pace) {
  if (pace.steps > 0) return fmt::format("every {}", pace.steps);
  const auto seconds = static_cast<std::uint64_t>(pace.time.count());
  const Unit* best = &units[0];
  for (const Unit& unit : units)
    if (seconds % unit.seconds == 0) best = &unit;
  return fmt::format("every {}{}", seconds / best->seconds, best->name);
}

std::vector<std::string> Places::directories() const {
  std::vector<std::string> all;
  if (!first.empty()) all.push_back(first);
  if (second) all.push_back(second->directory);
  return all;
}

Result<Places> parse_places(std::string_view text) {
  Places places;
  if (trim(text).empty()) return places;
  const std::vector<std::string_view> found = split_places(text);
  if (found.size() > 2)
    return refuse(text, fmt::format("they are {}, and a job has two at most", found.size()));
  // A directory may be named "every day".
  const Words first = words_of(found[0]);
  if (first.every && parse_pace(*first.every))
    return refuse(text, "`every` belongs behind the second place");
  places.first = found[0];
  if (found.size() == 1) return places;
  const Words second = words_of(found[1]);
  if (found[0].empty() || second.path.empty())
    return refuse(text, "a place is empty: two paths stand around a comma");
  places.second.emplace();
  places.second->directory = second.path;
  if (second.every) {
    const auto pace = parse_pace(*second.every);
    if (!pace)
      return refuse(text, fmt::format("\"{}\" behind `every` is neither a number of saves such as "
                                      "10 nor a time such as 30min",
                                      *second.every));
    places.second->pace = *pace;
  }
  const std::string one = fmt::format("{}/", without_slash(places.first));
  const std::string other = fmt::format("{}/", without_slash(second.path));
  if (one == other) return refuse(text, "both places are the same one");
  if (one.starts_with(other) || other.starts_with(one))
    return refuse(text, "one place lies in the other, and would be lost with it");
  return places;
}

std::string to_string(const Places& places) {
  if (!places.second) return places.first;
  const std::string both = places.first + ", " + places.second->directory;
  if (places.second->pace == Pace()) return both;
  return both + " " + to_string(places.second->pace);
}

}  // namespace ckpt::storage
