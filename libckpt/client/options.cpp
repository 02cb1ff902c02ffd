// How options are resolved:
//  1. `disable` comes first: no other option may prevent a user from disabling the library.
//  2. Options that the code left at their default come from the environment, else from the file.
//  3. Paths become absolute, since the daemon lives in another directory; durations are cut
//     so that sums cannot overflow; the node gets its name.
//  4. Every value is checked; an error names the option, its value and where it came from.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ckpt/options.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/log.hpp"
#include "base/log_level.hpp"
#include "base/variables.hpp"
#include "bucket/bucket_path.hpp"
#include "client/deadline.hpp"
#include "client/option_fields.hpp"
#include "client/option_text.hpp"
#include "os/small_file.hpp"
#include "storage/places.hpp"

namespace ckpt {

namespace {

using client::OptionField;

// A run that loses the memory of all its nodes loses at most this much training.
constexpr std::chrono::minutes storage_interval_default(30);
constexpr std::size_t file_bytes_max = 1 << 20;  // All options at their longest are far below.

struct Setting {
  std::string text;
  std::string origin;
};
using Settings = std::map<std::string, Setting, std::less<>>;

struct Resolved {
  Options options;
  std::map<std::string_view, std::string> origins;
};

// An option of the Python package, which shares our file.
constexpr std::string_view python_option = "raise_on_error";

std::string environment_name(std::string_view option) {
  std::string name(variable_prefix);
  for (const char letter : option)
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

Result<Settings> read_file(const std::string& path) {
  // One error code for all reasons: the named file cannot be used.
  const auto content = os::read_file(path, file_bytes_max);
  if (!content)
    return fail(Errc::io, "the configuration file (LIBCKPT_CONFIG): " + content.error().text(),
                content.error().cause());
  Settings settings;
  std::string_view rest = *content;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view text = client::trim(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (text.empty() || text.front() == '#') continue;
    const std::size_t equals = text.find('=');
    const std::string name(client::trim(text.substr(0, equals)));
    const std::string where = fmt::format("{} line {}", path, number);
    if (equals == std::string_view::npos)
      return fail(Errc::invalid_argument, fmt::format("{}: expected key = value", where));
    if (client::find_option_field(name) == nullptr && name != python_option)
      return fail(Errc::invalid_argument,
                  fmt::format("{}: there is no option \"{}\"", where, name));
    const std::string value(client::trim(text.substr(equals + 1)));
    if (!settings.emplace(name, Setting{value, "file " + where}).second)
      return fail(Errc::invalid_argument, fmt::format("{}: {} is set twice", where, name));
  }
  return settings;
}

Unexpected refuse_option(std::string_view name, std::string_view value, std::string_view origin,
                         std::string_view problem) {
  return fail(Errc::invalid_argument,
              fmt::format("option {} = \"{}\" ({}): {}", name, value, origin, problem));
}

// Step 2.
Status apply(Resolved& resolved, const OptionField& field, const Settings& file) {
  static const Options defaults;
  std::string& origin = resolved.origins[field.name];
  if (field.show(resolved.options) != field.show(defaults)) {
    origin = "code";
    return {};
  }
  origin = "default";
  Setting setting;
  const std::string variable = environment_name(field.name);
  if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
    setting = {value, "environment " + variable};
  } else if (const auto found = file.find(field.name); found != file.end()) {
    setting = found->second;
  } else {
    return {};
  }
  if (Status parsed = field.parse(resolved.options, setting.text); !parsed)
    return refuse_option(field.name, setting.text, setting.origin, parsed.error().text());
  origin = setting.origin;
  return {};
}

// Step 3.
Status make_absolute(std::string& path) {
  if (path.empty()) return {};
  if (bucket::is_bucket_path(path)) {
    CKPT_TRY(path, bucket::normal_path(path));
    return {};
  }
  CKPT_CHECK(bucket::check_path(path));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return fail(Errc::io, fmt::format("make {} an absolute path", path), error);
  path = absolute.lexically_normal();
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return {};
}

// "run, s3://bucket/run every 10": each place by itself. Two names of one place show only then.
Status make_places_absolute(std::string& dir) {
  auto places = storage::parse_places(dir);
  if (!places) return fail(std::move(places).error().context("option dir"));
  CKPT_CHECK(make_absolute(places->first));
  if (places->second) CKPT_CHECK(make_absolute(places->second->directory));
  dir = to_string(*places);
  if (auto again = storage::parse_places(dir); !again)
    return fail(std::move(again).error().context("option dir"));
  return {};
}

void choose_storage_interval(Options& options) {
  Interval& interval = options.save_storage_interval;
  if (!interval.is_automatic()) return;
  interval.time = {};
  if (interval.steps == 0 && !options.dir.empty()) interval.time = storage_interval_default;
}

Status complete(Options& options) {
  choose_storage_interval(options);
  // Not runtime_dir: a relative one is refused, as in every program.
  CKPT_CHECK(make_places_absolute(options.dir));
  for (auto member : {&Options::daemon_path, &Options::secret_file, &Options::log_file_path})
    CKPT_CHECK(make_absolute(options.*member));
  for (auto member : {&Options::open_deadline, &Options::restore_deadline})
    options.*member = std::min(options.*member, client::longest_duration);
  for (auto member : {&Options::save_mem_interval, &Options::save_storage_interval})
    (options.*member).time = std::min((options.*member).time, client::longest_duration);
  for (Node& node : options.nodes)
    if (node.failure_domain.empty()) node.failure_domain = node.name;
  if (!options.node.empty() || options.nodes.empty()) return {};
  if (options.nodes.size() == 1) {
    options.node = options.nodes.front().name;
    return {};
  }
  std::array<char, 256> host_name{};
  if (gethostname(host_name.data(), host_name.size() - 1) == 0) options.node = host_name.data();
  return {};
}

// Otherwise a misspelt option would silently stay unset.
void warn_of_unknown_variables() {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(variable_prefix) || is_known_variable(name)) continue;
    const auto is_it = [&](const OptionField& field) {
      return environment_name(field.name) == name;
    };
    if (std::ranges::any_of(client::option_fields(), is_it)) continue;
    log_warning("environment {}: there is no such option; `ckpt doctor` lists them", name);
  }
}

Result<Resolved> resolve_with_origins(Options given) {
  Resolved resolved{std::move(given), {}};
  // Step 1.
  const OptionField* disable = client::find_option_field("disable");
  CKPT_CHECK(apply(resolved, *disable, {}));
  if (resolved.options.disable) return resolved;
  Settings file;
  if (const char* path = std::getenv("LIBCKPT_CONFIG"); path != nullptr && *path != '\0') {
    CKPT_TRY(file, read_file(path));
  }
  for (const OptionField& field : client::option_fields()) CKPT_CHECK(apply(resolved, field, file));
  if (resolved.options.disable) return resolved;
  CKPT_CHECK(complete(resolved.options));
  return resolved;
}

}  // namespace

Status Options::set(std::string_view name, std::string_view text) {
  const OptionField* field = client::find_option_field(name);
  if (field == nullptr)
    return fail(Errc::invalid_argument, fmt::format("there is no option \"{}\"", name));
  const Status parsed = field->parse(*this, text);
  if (parsed) return {};
  return fail(Errc::invalid_argument,
              fmt::format("option {} = \"{}\": {}", name, text, parsed.error().text()));
}

Result<Options> Options::resolve(Options given) {
  CKPT_TRY(Resolved resolved, resolve_with_origins(std::move(given)));
  if (resolved.options.disable) return std::move(resolved.options);
  warn_of_unknown_variables();
  warn_of_unknown_log_level();
  // Step 4.
  const client::OptionProblem problem = client::find_problem(resolved.options);
  if (!problem.name.empty()) {
    const OptionField* field = client::find_option_field(problem.name);
    return refuse_option(problem.name, field->show(resolved.options),
                         resolved.origins[problem.name], problem.text);
  }
  return std::move(resolved.options);
}

Result<std::vector<OptionOrigin>> explain(const Options& given) {
  CKPT_TRY(Resolved resolved, resolve_with_origins(given));
  std::vector<OptionOrigin> out;
  for (const OptionField& field : client::option_fields()) {
    std::string& origin = resolved.origins[field.name];
    if (origin.empty()) origin = "default";  // Disabled: the others were not resolved.
    out.push_back({std::string(field.name), field.show(resolved.options), origin});
  }
  return out;
}

}  // namespace ckpt
