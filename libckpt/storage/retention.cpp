#include "storage/retention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "os/path.hpp"
#include "storage/full_disk.hpp"
#include "storage/member_reader.hpp"
#include "storage/removal.hpp"
#include "storage/run_catalog.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

std::string describe(const RetentionRule& rule) {
  if (rule.max_ckpt_num == 0) return "all are kept";
  std::string text = "only the newest";
  if (rule.max_ckpt_num > 1) text += fmt::format(" {}", rule.max_ckpt_num);
  const bool is_one = rule.max_ckpt_num == 1 && rule.keep_every.empty() && rule.best.count == 0;
  for (const KeepInterval& interval : rule.keep_every) {
    text += fmt::format(", steps that {} divides", interval.every);
    if (interval.until) text += fmt::format(" until {}", *interval.until);
  }
  if (rule.best.count > 0) {
    text += fmt::format(", the {} with the {} {}", rule.best.count,
                        rule.best.is_greatest ? "greatest" : "least", rule.best.metric);
  }
  return text + (is_one ? " is kept" : " are kept");
}

std::string deletion_reason(const Checkpoint& checkpoint, const RetentionRule& rule) {
  const std::string rule_in_words = describe(rule);
  if (!checkpoint.is_abandoned) return rule_in_words;
  return "abandoned by a restore to an older step; " + rule_in_words;
}

namespace {

bool is_of_a_door(std::string_view directory) {
  return directory.find(fmt::format("/{}/", private_directory_name)) != std::string_view::npos;
}

}  // namespace

Error with_room(const Error& error, const RetentionRule& rule, std::string_view directory) {
  const std::uint64_t count = rule.max_ckpt_num;
  const bool is_door = is_of_a_door(directory);
  if (!is_disk_full(error) || (is_door && count == 0)) return error;
  std::string cure = "older ones go only when this one is there: it needs room beside them";
  if (!is_door) {
    const std::string rule_in_words =
        count == 0 ? "no max_ckpt_num limits how many are kept"
                   : fmt::format(
                         "max_ckpt_num={} keeps {} until a newer one is durable: this "
                         "needs room for {}",
                         count, count, count + 1);
    cure = fmt::format("{}; `ckpt gc {} --keep N` makes room at once", rule_in_words,
                       os::display(directory));
  }
  return Error(error.code(),
               fmt::format("{} ({}); {}", error.text(), error.cause().message(), cure));
}

bool is_kept_for_good(std::span<const KeepInterval> intervals, Step step) {
  const auto first = std::ranges::find_if(intervals, [&](const KeepInterval& interval) {
    return !interval.until || *interval.until >= number(step);
  });
  // A message of a trainer may hold a 0.
  return first != intervals.end() && first->every != 0 && number(step) % first->every == 0;
}

namespace {

using IsCounted = std::function<bool(const Checkpoint&)>;

std::vector<std::size_t> best_of(std::span<const Checkpoint> checkpoints, const BestRule& rule,
                                 const IsCounted& is_counted) {
  std::vector<std::size_t> best;
  if (rule.count == 0) return best;
  for (std::size_t index = 0; index < checkpoints.size(); ++index) {
    const Checkpoint& checkpoint = checkpoints[index];
    if (is_counted(checkpoint) && checkpoint.metrics.contains(rule.metric)) best.push_back(index);
  }
  const auto rank = [&](std::size_t index) {
    const double value = checkpoints[index].metrics.find(rule.metric)->second;
    return std::tuple(rule.is_greatest ? value : -value, checkpoints[index].at, index);
  };
  std::sort(best.begin(), best.end(),
            [&](std::size_t left, std::size_t right) { return rank(left) > rank(right); });
  if (best.size() > rule.count) best.resize(rule.count);
  return best;
}

}  // namespace

std::string explain_no_best(std::span<const Checkpoint> checkpoints, const BestRule& rule) {
  if (rule.count == 0) return {};
  std::set<std::string> known;
  for (const Checkpoint& checkpoint : checkpoints)
    for (const auto& [name, value] : checkpoint.metrics) known.insert(name);
  if (known.empty() || known.contains(rule.metric)) return {};
  return fmt::format(
      "no checkpoint has the metric \"{}\", by which the best are kept; they have: {}", rule.metric,
      fmt::join(known, ", "));
}

std::optional<Step> first_not_stored(std::span<const KeepInterval> intervals,
                                     std::span<const Checkpoint> checkpoints, format::StepId at) {
  std::optional<std::uint64_t> before;
  for (const Checkpoint& checkpoint : checkpoints)
    if (checkpoint.at.timeline == at.timeline && checkpoint.at.step < at.step)
      before = std::max(before.value_or(0), number(checkpoint.at.step));
  if (!before) return std::nullopt;
  std::uint64_t from = *before;  // Steps above it that this interval has.
  for (const KeepInterval& interval : intervals) {
    const std::uint64_t until = interval.until.value_or(UINT64_MAX);
    if (interval.every == 0 || until <= from) continue;
    const std::uint64_t next = from + interval.every - from % interval.every;
    if (next < number(at.step) && next <= until) return Step{next};
    from = until;
    if (from >= number(at.step)) break;
  }
  return std::nullopt;
}

std::vector<std::size_t> select_for_deletion(std::span<const Checkpoint> checkpoints,
                                             const RetentionRule& rule,
                                             std::span<const format::StepId> protected_steps,
                                             std::span<const format::StepId> damaged) {
  if (rule.max_ckpt_num == 0) return {};
  const auto is_in = [](std::span<const format::StepId> steps, const format::StepId& at) {
    return std::ranges::find(steps, at) != steps.end();
  };
  std::vector<std::size_t> order, broken;
  for (std::size_t index = 0; index < checkpoints.size(); ++index)
    (is_in(damaged, checkpoints[index].at) ? broken : order).push_back(index);
  std::sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return std::tuple(!checkpoints[left].is_abandoned, checkpoints[left].at, left) <
           std::tuple(!checkpoints[right].is_abandoned, checkpoints[right].at, right);
  });
  const std::size_t good_count = order.size();
  std::erase_if(broken, [&](std::size_t index) {
    const auto newer = std::count_if(order.begin(), order.end(), [&](std::size_t other) {
      return checkpoints[other].at > checkpoints[index].at;
    });
    return newer < static_cast<std::ptrdiff_t>(rule.max_ckpt_num);
  });
  order.resize(good_count - std::min<std::size_t>(good_count, rule.max_ckpt_num));
  order.insert(order.begin(), broken.begin(), broken.end());
  CKPT_ASSERT(order.empty() || order.size() < checkpoints.size());
  // A restore that passed over a damaged one has abandoned it; it may be the best all the same.
  std::set<std::size_t> best;
  for (const bool with_damaged : {false, true}) {
    const IsCounted is_counted = [&](const Checkpoint& checkpoint) {
      const bool is_damaged = is_in(damaged, checkpoint.at);
      return is_damaged ? with_damaged : !checkpoint.is_abandoned;
    };
    const auto found = best_of(checkpoints, rule.best, is_counted);
    best.insert(found.begin(), found.end());
  }
  std::erase_if(order, [&](std::size_t index) {
    const format::StepId& at = checkpoints[index].at;
    return is_in(protected_steps, at) || best.contains(index) ||
           is_kept_for_good(rule.keep_every, at.step);
  });
  return order;
}

Task<std::vector<Checkpoint>> choose_superfluous(Site site, RetentionOrder order,
                                                 Catalog& catalog) {
  std::vector<Checkpoint> superfluous;
  if (order.rule.max_ckpt_num == 0) co_return superfluous;
  const auto marked = co_await mark_abandoned(site, order.run, catalog);
  if (!marked) log_warning("storage: the oldest go first: {}", marked.error().message());
  const auto chosen =
      select_for_deletion(catalog.checkpoints, order.rule, order.protected_steps, order.damaged);
  for (const std::size_t index : chosen) superfluous.push_back(catalog.checkpoints[index]);
  CKPT_ASSERT(superfluous.empty() ||
              superfluous.size() + order.rule.max_ckpt_num <= catalog.checkpoints.size());
  for (const Checkpoint& checkpoint : superfluous)
    CKPT_ASSERT(std::ranges::find(order.protected_steps, checkpoint.at) ==
                order.protected_steps.end());
  co_return superfluous;
}

Task<std::vector<Checkpoint>> apply_retention(Site site, RetentionOrder order, Catalog& catalog) {
  std::vector<Checkpoint> deleted;
  CKPT_CO_TRY(std::vector<Checkpoint> superfluous,
              co_await choose_superfluous(site, order, catalog));
  CKPT_POINT("prune.select");
  if (const std::string doubt = explain_no_best(catalog.checkpoints, order.rule.best);
      !superfluous.empty() && !doubt.empty())
    log_warning("storage: {}: {}", site.directory(), doubt);
  for (Checkpoint& checkpoint : superfluous) {
    std::string reason = deletion_reason(checkpoint, order.rule);
    const Status removed =
        co_await remove_checkpoint(site, checkpoint, order.run, std::move(reason));
    if (!removed && removed.error().code() == Errc::unavailable) {
      catalog.rejected.push_back(
          Rejected{checkpoint.name, Errc::unavailable, removed.error().text(), false});
      continue;
    }
    const bool is_gone = !removed && removed.error().code() == Errc::not_found;
    if (!removed && !is_gone) co_return fail(Error(removed.error()));
    std::erase_if(catalog.checkpoints,
                  [&](const Checkpoint& listed) { return listed.name == checkpoint.name; });
    if (!is_gone) deleted.push_back(std::move(checkpoint));
  }
  co_return deleted;
}

namespace {

// The newest first: a restore would take it.
Task<void> check_one_is_good(Site site, std::vector<Checkpoint> kept) {
  std::string why = "none would stay";
  for (auto checkpoint = kept.rbegin(); checkpoint != kept.rend(); ++checkpoint) {
    if (checkpoint->is_abandoned) continue;
    const auto report = co_await verify_checkpoint(site.files(), site.at(checkpoint->name));
    if (report && report->is_good()) co_return Status();
    why = checkpoint->name + (report ? " is damaged" : ": " + report.error().text());
  }
  co_return fail(Errc::corruption, "make room: nothing is deleted, since " + why);
}

}  // namespace

Task<std::vector<Checkpoint>> make_room(Site site, RetentionOrder order) {
  CatalogOptions options;
  options.run = order.run;
  CKPT_CO_TRY(Catalog catalog, co_await read_catalog(site, options));
  CKPT_CO_TRY(const std::vector<Checkpoint> superfluous,
              co_await choose_superfluous(site, order, catalog));
  if (superfluous.empty()) co_return superfluous;
  std::vector<Checkpoint> kept = catalog.checkpoints;
  std::erase_if(kept, [&](const Checkpoint& each) {
    return std::ranges::find(superfluous, each.name, &Checkpoint::name) != superfluous.end();
  });
  CKPT_CO_CHECK(co_await check_one_is_good(site, std::move(kept)));
  auto deleted = co_await apply_retention(site, std::move(order), catalog);
  co_return deleted;
}

}  // namespace ckpt::storage
