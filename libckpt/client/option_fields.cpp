#include "client/option_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "client/option_text.hpp"

namespace ckpt::client {

namespace {

// One kind of field for each type. They differ only in how a text is read and shown.
template <auto member>
constexpr OptionField text_field(std::string_view name) {
  return {name,
          [](Options& options, std::string_view text) -> Status {
            options.*member = std::string(trim(text));
            return {};
          },
          [](const Options& options) { return options.*member; }};
}

template <auto member>
constexpr OptionField count_field(std::string_view name) {
  return {name,
          [](Options& options, std::string_view text) -> Status {
            using Value = std::remove_reference_t<decltype(options.*member)>;
            CKPT_TRY(const auto value, parse_count(text, std::numeric_limits<Value>::max()));
            options.*member = static_cast<Value>(value);
            return {};
          },
          [](const Options& options) { return fmt::format("{}", options.*member); }};
}

template <auto member, auto parse_value, auto show_value>
constexpr OptionField field(std::string_view name) {
  return {name,
          [](Options& options, std::string_view text) -> Status {
            CKPT_TRY(options.*member, parse_value(text));
            return {};
          },
          [](const Options& options) -> std::string { return show_value(options.*member); }};
}

std::string show_bool(bool value) {
  return value ? "true" : "false";
}

template <auto member>
constexpr OptionField bool_field(std::string_view name) {
  return field<member, parse_bool, show_bool>(name);
}
template <auto member>
constexpr OptionField bytes_field(std::string_view name) {
  return field<member, parse_bytes, show_bytes>(name);
}
template <auto member>
constexpr OptionField duration_field(std::string_view name) {
  return field<member, parse_duration, show_duration>(name);
}
template <auto member>
constexpr OptionField interval_field(std::string_view name) {
  return field<member, Interval::parse, show_interval>(name);
}

Result<Yield> parse_yield(std::string_view text) {
  if (trim(text) == "auto") return Yield::automatic;
  if (trim(text) == "off") return Yield::off;
  return fail(Errc::invalid_argument, "expected auto or off");
}
std::string show_yield(Yield yield) {
  return yield == Yield::off ? "off" : "auto";
}

Result<Best> parse_best(std::string_view text) {
  if (trim(text) == "min") return Best::min;
  if (trim(text) == "max") return Best::max;
  return fail(Errc::invalid_argument, "expected min or max");
}
std::string show_best(Best best) {
  return best == Best::min ? "min" : "max";
}

constexpr std::array<std::pair<GpuGap, std::string_view>, 5> gap_names = {{
    {GpuGap::none, "none"},
    {GpuGap::memset, "memset"},
    {GpuGap::write_value, "write_value"},
    {GpuGap::copy, "copy"},
    {GpuGap::automatic, "auto"},
}};
Result<GpuGap> parse_gap(std::string_view text) {
  for (const auto& [gap, name] : gap_names)
    if (trim(text) == name) return gap;
  return fail(Errc::invalid_argument, "expected auto, none, memset, write_value or copy");
}
std::string show_gap(GpuGap gap) {
  for (const auto& [known, name] : gap_names)
    if (known == gap) return std::string(name);
  return {};
}

Result<GpuGather> parse_gather(std::string_view text) {
  if (trim(text) == "auto") return GpuGather::automatic;
  if (trim(text) == "on") return GpuGather::on;
  if (trim(text) == "off") return GpuGather::off;
  return fail(Errc::invalid_argument, "expected auto, on or off");
}
std::string show_gather(GpuGather gather) {
  if (gather == GpuGather::automatic) return "auto";
  return gather == GpuGather::on ? "on" : "off";
}

// For storage, "0" is the usual word for never. For captures it would leave nothing at all.
Result<Interval> parse_captures(std::string_view text) {
  CKPT_TRY(const Interval interval, Interval::parse(text));
  if (!is_zero(interval)) return interval;
  return fail(Errc::invalid_argument, std::string(no_captures));
}
std::string show_captures(const Interval& interval) {
  return is_zero(interval) ? "0" : show_interval(interval);
}

constexpr std::array fields = {
    text_field<&Options::job>("job"),
    text_field<&Options::dir>("dir"),
    count_field<&Options::rank>("rank"),
    count_field<&Options::world_size>("world_size"),
    field<&Options::nodes, parse_nodes, show_nodes>("nodes"),
    text_field<&Options::node>("node"),
    count_field<&Options::incarnation>("incarnation"),
    field<&Options::save_mem_interval, parse_captures, show_captures>("save_mem_interval"),
    interval_field<&Options::save_storage_interval>("save_storage_interval"),
    count_field<&Options::max_ckpt_num>("max_ckpt_num"),
    field<&Options::keep_every, parse_keep_intervals, show_keep_intervals>("keep_every"),
    count_field<&Options::keep_best>("keep_best"),
    text_field<&Options::best_metric>("best_metric"),
    field<&Options::best_mode, parse_best, show_best>("best_mode"),
    text_field<&Options::compression>("compression"),
    bytes_field<&Options::memory_budget>("memory_budget"),
    count_field<&Options::replicas>("replicas"),
    count_field<&Options::own_slots>("own_slots"),
    bytes_field<&Options::blob_capacity>("blob_capacity"),
    count_field<&Options::copy_threads>("copy_threads"),
    bytes_field<&Options::gpu_copy_rate>("gpu_copy_rate"),
    field<&Options::gpu_gap, parse_gap, show_gap>("gpu_gap"),
    field<&Options::gpu_gather, parse_gather, show_gather>("gpu_gather"),
    bool_field<&Options::gpu_check>("gpu_check"),
    bytes_field<&Options::flush_rate>("flush_rate"),
    bytes_field<&Options::replica_rate>("replica_rate"),
    bool_field<&Options::skip_unchanged>("skip_unchanged"),
    field<&Options::yield, parse_yield, show_yield>("yield"),
    text_field<&Options::runtime_dir>("runtime_dir"),
    text_field<&Options::daemon_path>("daemon_path"),
    bool_field<&Options::embedded>("embedded"),
    text_field<&Options::secret_file>("secret_file"),
    text_field<&Options::interface>("interface"),
    count_field<&Options::port>("port"),
    text_field<&Options::log_file_path>("log_file_path"),
    bool_field<&Options::disable>("disable"),
    bool_field<&Options::checksum_in_copy>("checksum_in_copy"),
    bool_field<&Options::compare_copies>("compare_copies"),
    duration_field<&Options::open_deadline>("open_deadline"),
    duration_field<&Options::restore_deadline>("restore_deadline"),
};

}  // namespace

std::span<const OptionField> option_fields() {
  return fields;
}

const OptionField* find_option_field(std::string_view name) {
  const auto found = std::ranges::find(fields, name, &OptionField::name);
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace ckpt::client
