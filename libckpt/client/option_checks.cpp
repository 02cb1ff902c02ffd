// Checks each value, alone and together with the others. docs/limits.md lists the limits.
#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/units.hpp"
#include "client/option_fields.hpp"
#include "format/metrics.hpp"
#include "storage/frame_codec.hpp"

namespace ckpt::client {

namespace {

constexpr std::size_t job_bytes_max = 128;           // It becomes part of paths and headers.
constexpr std::uint32_t world_size_max = 1'000'000;  // Ten times the largest job known to us.
constexpr std::size_t keep_intervals_max = 64;       // Nobody types more.
constexpr std::uint32_t replicas_max = 8;            // More is useless: storage is the next copy.
constexpr std::uint32_t own_slots_max = 64;
constexpr std::uint32_t copy_threads_max = 64;  // CopyThreads::threads_max.
constexpr std::uint64_t blob_capacity_max = 64 * GiB;
// At this rate a checkpoint of 100 GiB takes a day. A peer gives up a copy when 256 KiB take 10 s.
constexpr std::uint64_t rate_min = MiB;
constexpr std::string_view name_letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

bool is_good_name(std::string_view text) {
  return !text.empty() && text.size() <= job_bytes_max &&
         text.find_first_not_of(name_letters) == std::string_view::npos;
}

OptionProblem check_identity(const Options& options) {
  if (options.job.empty()) return {"job", "is required: the job's name, the same on every rank"};
  if (!is_good_name(options.job)) return {"job", "must be 1 to 128 of [A-Za-z0-9._-]"};
  if (options.job == "." || options.job == "..") return {"job", "must not be \".\" or \"..\""};
  if (options.world_size < 1 || options.world_size > world_size_max)
    return {"world_size", fmt::format("must be 1 to {}", world_size_max)};
  if (options.rank >= options.world_size)
    return {"rank", fmt::format("must be below world_size, which is {}", options.world_size)};
  return {};
}

OptionProblem check_nodes(const Options& options) {
  std::set<std::string_view> names;
  for (const Node& node : options.nodes) {
    if (!is_good_name(node.name))
      return {"nodes",
              fmt::format("the name \"{}\" must be 1 to 128 of [A-Za-z0-9._-]", node.name)};
    if (!names.insert(node.name).second)
      return {"nodes", fmt::format("names \"{}\" twice", node.name)};
    if (options.nodes.size() > 1 && node.address.empty())
      return {"nodes",
              fmt::format("node \"{}\" has no address, which several nodes need", node.name)};
  }
  if (options.nodes.size() > options.world_size)
    return {"nodes", fmt::format("names {} nodes for {} ranks: every node must have a rank",
                                 options.nodes.size(), options.world_size)};
  if (!options.nodes.empty() && !names.contains(options.node)) {
    std::string all;
    for (const Node& node : options.nodes) all += (all.empty() ? "" : ", ") + node.name;
    return {"node", fmt::format("is not one of the job's nodes ({})", all)};
  }
  if (options.nodes.empty() && !options.node.empty() && !is_good_name(options.node))
    return {"node", "must be 1 to 128 of [A-Za-z0-9._-]"};
  return {};
}

OptionProblem check_intervals(const Options& options) {
  for (const auto& [name, interval] :
       {std::pair<std::string_view, Interval>{"save_mem_interval", options.save_mem_interval},
        {"save_storage_interval", options.save_storage_interval}}) {
    if (interval.steps > 0 && interval.time.count() != 0)
      return {name, "must be steps or time, not both"};
    if (interval.time.count() < 0 && !interval.is_never()) return {name, "must not be negative"};
  }
  if (is_zero(options.save_mem_interval)) return {"save_mem_interval", std::string(no_captures)};
  if (!options.save_storage_interval.is_never() && options.dir.empty())
    return {"save_storage_interval", "needs dir, which is not set"};
  return {};
}

OptionProblem check_retention(const Options& options) {
  if (options.keep_every.size() > keep_intervals_max)
    return {"keep_every", fmt::format("has more than {} intervals", keep_intervals_max)};
  for (std::size_t index = 0; index < options.keep_every.size(); ++index) {
    const KeepInterval& interval = options.keep_every[index];
    if (interval.every == 0) return {"keep_every", "must be steps from 1"};
    if (index == 0) continue;
    const auto& before = options.keep_every[index - 1].until;
    if (!before) return {"keep_every", "may lack its `until` in the last interval only"};
    if (interval.until && *interval.until <= *before)
      return {"keep_every", "must have its intervals in the order of their `until`"};
  }
  if (options.keep_best > 0 && options.best_metric.empty())
    return {"keep_best", "needs best_metric, the name of a metric that is given with saves"};
  if (options.keep_best == 0 && !options.best_metric.empty())
    return {"best_metric", "needs keep_best, the number of steps to keep by it"};
  if (options.best_metric.size() > format::metric_name_bytes_max)
    return {"best_metric",
            fmt::format("must have at most {} bytes", format::metric_name_bytes_max)};
  if (options.max_ckpt_num > 0) return {};
  constexpr std::string_view needless = "needs max_ckpt_num: without it nothing is ever deleted";
  if (!options.keep_every.empty()) return {"keep_every", std::string(needless)};
  if (options.keep_best > 0) return {"keep_best", std::string(needless)};
  return {};
}

OptionProblem check_storage(const Options& options) {
  const auto compression = storage::parse_compression(options.compression);
  if (!compression) return {"compression", compression.error().text()};
  if (*compression && options.dir.empty()) return {"compression", "needs dir, which is not set"};
  return {};
}

OptionProblem check_limits(const Options& options) {
  if (options.replicas < 1 || options.replicas > replicas_max)
    return {"replicas", fmt::format("must be 1 to {}, the own copy included", replicas_max)};
  if (options.own_slots == 1 || options.own_slots > own_slots_max)
    return {"own_slots", fmt::format("must be 0 or 2 to {}: one holds the newest committed step, "
                                     "one takes the next",
                                     own_slots_max)};
  if (options.copy_threads < 1 || options.copy_threads > copy_threads_max)
    return {"copy_threads", fmt::format("must be 1 to {}", copy_threads_max)};
  if (options.blob_capacity > blob_capacity_max)
    return {"blob_capacity", fmt::format("must be at most {} GiB", blob_capacity_max / GiB)};
  for (const auto& [name, rate] :
       {std::pair<std::string_view, std::uint64_t>{"flush_rate", options.flush_rate},
        {"replica_rate", options.replica_rate}}) {
    if (rate != 0 && rate < rate_min)
      return {name,
              fmt::format("must be 0 (no limit) or at least {} MiB per second", rate_min / MiB)};
  }
  if (!options.runtime_dir.empty() && options.runtime_dir.front() != '/')
    return {"runtime_dir", "must start with /"};
  if (options.open_deadline.count() <= 0) return {"open_deadline", "must be more than 0s"};
  if (options.restore_deadline.count() <= 0) return {"restore_deadline", "must be more than 0s"};
  return {};
}

}  // namespace

OptionProblem find_problem(const Options& options) {
  for (const auto check :
       {check_identity, check_nodes, check_intervals, check_retention, check_storage, check_limits})
    if (OptionProblem problem = check(options); !problem.name.empty()) return problem;
  return {};
}

}  // namespace ckpt::client
