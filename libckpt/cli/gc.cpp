// How garbage is collected:
//   1. The marker names the run. A directory without one is refused: the files there may be
//      somebody else's.
//   2. The daemon of this node is asked whether it works in the directory. If so, attempts are its
//      own business; published checkpoints may go at any time, since their removal is atomic.
//   3. The surplus is chosen as a daemon would choose it. The job has recorded its own keep_every
//      and keep_best; options of the command count instead. The last step stays that has what newer
//      ones lack.
//   4. One of the checkpoints that stay is read as a whole: damage must not make the last good one
//      go.
//      A dry run ends here, so that it promises nothing else.
//   5. Each is removed: logged, hidden by a rename (in a bucket: without its manifest), then its
//   files.
#include <fmt/format.h>

#include <algorithm>

#include "arena/arena_limits.hpp"
#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"
#include "cli/json_read.hpp"
#include "cli/memory_step.hpp"
#include "cli/same_place.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "os/path.hpp"
#include "storage/last_whole.hpp"
#include "storage/left_attempts.hpp"
#include "storage/member_reader.hpp"
#include "storage/orphans.hpp"
#include "storage/place_check.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/retention_record.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::cli {

namespace {

struct Plan {
  format::RunId run;
  storage::RetentionRule rule;            // It joins what the job itself keeps.
  bool is_recorded = false;               // Whether the job has said what it keeps.
  format::Timelines timelines;            // The choice was made by these.
  std::vector<storage::Checkpoint> kept;  // A restore may take these; the newest first.
  std::vector<storage::Checkpoint> superfluous;
  std::optional<storage::Checkpoint> whole;  // Stays besides, for this reason.
  std::string why_besides;
  std::vector<storage::LeftAttempt> left;
  std::size_t recent = 0;  // Attempts that may not be over.
  bool is_in_use = false;
};

constexpr std::string_view history_way_out =
    "bring it back from a copy of this directory, or restore a step by its number once, which "
    "begins a new history";

Error with_way_out(const Error& error, std::string_view way_out) {
  return Error(error.code(), fmt::format("{}; {}", error.text(), way_out), error.cause());
}

// Step 1.
Result<format::RunId> run_of(Workplace& workplace, const storage::Site& site) {
  const std::string& directory = site.directory();
  auto there = workplace.run(storage::check_there(site));
  if (!there && there.error().code() == Errc::not_found)
    return fail(Errc::not_found,
                fmt::format("collect garbage in {}: there is no such directory", directory));
  if (!there && there.error().cause() == std::errc::not_a_directory)
    return fail(Errc::invalid_argument,
                fmt::format("collect garbage in {}: it is a file", directory));
  if (!there) return fail(std::move(there).error());
  auto marker = workplace.run(storage::read_run_marker(site));
  if (marker) return marker->run;
  const Errc code = marker.error().code();
  if (code != Errc::not_found)
    return fail(storage::damaged_marker_error(directory, marker.error()));
  storage::CatalogOptions options;
  options.make_durable = false;
  const auto catalog = workplace.run(storage::read_catalog(site, options));
  if (catalog)
    if (const auto lost = storage::describe_orphans(*catalog, std::nullopt); !lost.empty())
      return fail(storage::orphans_error(directory, lost));
  return fail(Errc::invalid_argument,
              fmt::format("collect garbage in {}: it has no {}, so it is not the directory of a "
                          "job; name the one that the job was given as `dir`",
                          directory, storage::run_marker_name));
}

// Step 2. A daemon of another node cannot be asked; the age of attempts speaks for it.
Result<bool> is_in_use(const std::string& runtime_dir, const std::string& directory) {
  const auto answer = ask_daemon(runtime_dir, wire::control::AskStatus{}, answer_time);
  if (!answer && answer.error().code() == Errc::not_found) return false;
  if (!answer)
    return fail(Error(answer.error()).context("find out whether the daemon works in " + directory));
  CKPT_TRY(const Json status, parse_answer(*answer));
  const Json jobs = list_in(status, "jobs");
  return std::ranges::any_of(
      jobs, [&](const Json& job) { return is_same_place(text_in(job, "directory"), directory); });
}

// Step 3.
Status add_own_words(Workplace& workplace, const storage::Site& site, const GcOptions& given,
                     Plan& plan) {
  plan.rule = given.rule;
  const auto own = workplace.run(storage::load_retention(site, plan.run));
  if (given.rule.max_ckpt_num == 0) {  // All are kept, whatever it says.
    plan.is_recorded = own && own->has_value();
    return {};
  }
  if (!own && given.has_every && given.has_best) return {};
  if (!own)
    return fail(Error(own.error())
                    .context(fmt::format("find out what the job in {} keeps (its next save writes "
                                         "it anew; --keep-every and --keep-best together count "
                                         "instead)",
                                         site.directory())));
  plan.is_recorded = own->has_value();
  if (!plan.is_recorded) return {};
  if (!given.has_every) plan.rule.keep_every = (*own)->keep_every;
  if (!given.has_best) plan.rule.best = (*own)->best;
  return {};
}

// Step 3. As node::CoverageCheck, which knows most steps and so reads few.
void keep_last_whole(Workplace& workplace, const storage::Site& site,
                     const std::vector<storage::Checkpoint>& there, Plan& plan) {
  if (plan.superfluous.empty()) return;
  storage::LastWhole whole;
  for (auto it = there.rbegin(); it != there.rend() && !whole.is_found(); ++it) {
    if (it->is_abandoned) continue;
    const auto looked = look_through(workplace, site, it->name);
    const bool is_newest = !whole.step();
    whole.add(it->at, looked ? std::optional(looked->missing.tensors) : std::nullopt);
    if (is_newest)
      plan.why_besides = looked
                             ? "the newest is stored " + gather::in_words(looked->missing)
                             : "the newest cannot be looked through: " + looked.error().message();
  }
  const auto stays = std::ranges::find_if(plan.superfluous, [&](const storage::Checkpoint& each) {
    return each.at == whole.step() && !each.is_abandoned;
  });
  if (stays == plan.superfluous.end()) return;
  plan.whole = std::move(*stays);
  plan.superfluous.erase(stays);
}

Result<Plan> plan_for(Workplace& workplace, const storage::Site& site, const GcOptions& given) {
  Plan plan;
  CKPT_TRY(plan.run, run_of(workplace, site));
  CKPT_CHECK(add_own_words(workplace, site, given, plan));
  auto timelines = workplace.run(storage::load_timelines(site, plan.run));
  if (!timelines && timelines.error().code() == Errc::corruption)
    return fail(with_way_out(timelines.error(), history_way_out));
  CKPT_TRY(plan.timelines, std::move(timelines));
  CKPT_TRY(plan.is_in_use, is_in_use(given.runtime_dir, site.directory()));
  storage::CatalogOptions options;
  options.run = plan.run;
  options.make_durable = false;
  CKPT_TRY(auto catalog, workplace.run(storage::read_catalog(site, options)));
  if (given.rule.max_ckpt_num > 0) {  // A daemon would go on without; a person can repair it.
    const auto marked = workplace.run(storage::mark_abandoned(site, plan.run, catalog));
    if (!marked) {
      return fail(with_way_out(marked.error(), history_way_out)
                      .context("collect garbage in " + site.directory()));
    }
  }
  storage::RetentionOrder order{plan.run, plan.rule, {}, {}};
  if (const std::string doubt = storage::explain_no_best(catalog.checkpoints, plan.rule.best);
      !doubt.empty())
    return fail(Errc::invalid_argument,
                fmt::format("collect garbage in {}: {}", site.directory(), doubt));
  CKPT_TRY(plan.superfluous,
           workplace.run(storage::choose_superfluous(site, std::move(order), catalog)));
  keep_last_whole(workplace, site, catalog.checkpoints, plan);
  for (auto it = catalog.checkpoints.rbegin(); it != catalog.checkpoints.rend(); ++it) {
    const bool goes = std::ranges::any_of(
        plan.superfluous, [&](const storage::Checkpoint& each) { return each.name == it->name; });
    if (!goes && !it->is_abandoned) plan.kept.push_back(*it);
  }
  CKPT_TRY(const auto attempts, workplace.run(storage::list_attempts(site)));
  for (const storage::LeftAttempt& attempt : attempts) {
    if (attempt.is_left && !plan.is_in_use) {
      plan.left.push_back(attempt);
    } else {
      ++plan.recent;
    }
  }
  return plan;
}

// Step 4.
Status verify_kept(Workplace& workplace, const storage::Site& site, const Plan& plan) {
  std::string damage;
  for (const storage::Checkpoint& checkpoint : plan.kept) {
    const auto report = workplace.run(storage::verify_checkpoint(site, checkpoint.name));
    if (report && report->is_good()) return {};
    damage += "; " + checkpoint.name + " is damaged";
  }
  return fail(Errc::corruption,
              fmt::format("collect garbage in {}: no whole checkpoint would be left{}; nothing is "
                          "removed",
                          site.directory(), damage));
}

// A restore to an older step makes that one the newest, and needs it.
Status check_history(Workplace& workplace, const storage::Site& site, const Plan& plan) {
  CKPT_TRY(const auto now, workplace.run(storage::load_timelines(site, plan.run)));
  if (now.history == plan.timelines.history) return {};
  return fail(Errc::unavailable,
              fmt::format("collect garbage in {}: a restore has begun meanwhile; run this again",
                          site.directory()));
}

// Step 5. A checkpoint that a daemon removes or replaces meanwhile is gone as well.
Status remove_all(Workplace& workplace, const storage::Site& site, const Plan& plan) {
  for (const storage::Checkpoint& checkpoint : plan.superfluous) {
    CKPT_CHECK(check_history(workplace, site, plan));
    std::string reason = "ckpt gc: " + storage::deletion_reason(checkpoint, plan.rule);
    Status removed =
        workplace.run(storage::remove_checkpoint(site, checkpoint, plan.run, std::move(reason)));
    if (!removed && removed.error().code() != Errc::not_found) return removed;
  }
  storage::StaleAttempts stale;
  stale.timelines_below = 0;
  for (const storage::LeftAttempt& attempt : plan.left) stale.names.push_back(attempt.name);
  stale.with_files_aside = false;  // A daemon of another node may just be writing one.
  if (stale.names.empty()) return {};
  CKPT_TRY(const auto done, workplace.run(storage::discard_stale(site, std::move(stale))));
  return {};
}

Json removal_json(const std::string& name, const format::StepId& at, std::uint64_t bytes) {
  return {{"name", name}, {"timeline", at.timeline}, {"step", number(at.step)}, {"bytes", bytes}};
}

std::string describe_whole(const Plan& plan) {
  if (!plan.whole) return {};
  return fmt::format("Stays besides: {}, since {}.\n", printable(plan.whole->name),
                     printable(plan.why_besides));
}

Json whole_json(const Plan& plan) {
  if (!plan.whole) return nullptr;
  return {{"name", plan.whole->name},
          {"timeline", plan.whole->at.timeline},
          {"step", number(plan.whole->at.step)},
          {"why", plan.why_besides}};
}

std::string describe_rule(const Plan& plan) {
  std::string text = fmt::format("Rule: {}.\n", printable(storage::describe(plan.rule)));
  if (!plan.is_recorded && !plan.superfluous.empty())
    text +=
        "The job has recorded no keep_every or keep_best of its own: only --keep-every and "
        "--keep-best count.\n";
  return text;
}

Outcome gc_outcome(const GcOptions& given, const Plan& plan) {
  Outcome outcome;
  std::uint64_t bytes = 0;
  Table table("lrrl", {"NAME", "STEP", "SIZE", "WHY"});
  outcome.json = {{"directory", given.dir},           {"dry_run", given.dry_run},
                  {"in_use", plan.is_in_use},         {"rule", storage::describe(plan.rule)},
                  {"recorded", plan.is_recorded},     {"checkpoints", Json::array()},
                  {"attempts", Json::array()},        {"recent_attempts", plan.recent},
                  {"stays_besides", whole_json(plan)}};
  for (const storage::Checkpoint& each : plan.superfluous) {
    bytes += each.bytes;
    outcome.json["checkpoints"].push_back(removal_json(each.name, each.at, each.bytes));
    table.add({each.name, std::to_string(number(each.at.step)), arena::human_bytes(each.bytes),
               each.is_abandoned ? "abandoned by a restore" : "older than those kept"});
  }
  for (const storage::LeftAttempt& each : plan.left) {
    bytes += each.bytes;
    outcome.json["attempts"].push_back(removal_json(each.name, each.at, each.bytes));
    table.add({each.name, std::to_string(number(each.at.step)), arena::human_bytes(each.bytes),
               "left by an attempt"});
  }
  outcome.json["bytes"] = bytes;
  if (table.is_empty()) {
    outcome.text = fmt::format("Nothing to remove in {}.\n", printable(given.dir));
  } else {
    outcome.text = table.to_text(0, text_width());
    outcome.text += fmt::format("{} {} and {}: {}.\n", given.dry_run ? "Would remove" : "Removed",
                                counted(std::to_string(plan.superfluous.size()), "checkpoint"),
                                counted(std::to_string(plan.left.size()), "attempt"),
                                arena::human_bytes(bytes));
  }
  const auto goes = std::ranges::find(plan.superfluous, true, &storage::Checkpoint::is_abandoned);
  if (given.dry_run && goes != plan.superfluous.end())
    outcome.text += fmt::format("To keep an abandoned one: first `ckpt cp {} ELSEWHERE`.\n",
                                printable(os::join(given.dir, goes->name)));
  outcome.text += describe_whole(plan);
  if (given.rule.max_ckpt_num > 0) outcome.text += describe_rule(plan);
  if (plan.recent > 0) {
    outcome.text += fmt::format(
        "Not touched: {} to save, {}.\n", counted(std::to_string(plan.recent), "attempt"),
        plan.is_in_use ? "since the daemon of this node works here" : "of the last hour");
  }
  return outcome;
}

}  // namespace

Result<Outcome> collect_garbage(const GcOptions& given) {
  if (given.dir.empty())
    return fail(Errc::invalid_argument, "collect garbage in \"\": name the directory");
  CKPT_CHECK(refuse_memory_path(given.dir, "collect garbage in"));
  CKPT_CHECK(refuse_two_places(given.dir, "collect garbage in"));
  Workplace workplace;
  const storage::Site site = workplace.site(given.dir);
  CKPT_TRY(const Plan plan, plan_for(workplace, site, given));
  if (!plan.superfluous.empty()) CKPT_CHECK(verify_kept(workplace, site, plan));
  if (!given.dry_run) CKPT_CHECK(remove_all(workplace, site, plan));
  return gc_outcome(given, plan);
}

}  // namespace ckpt::cli
