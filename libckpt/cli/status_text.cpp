#include "cli/status_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "arena/arena_limits.hpp"
#include "cli/json_read.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace ckpt::cli {

namespace {

// More steps that memory does not have are left to `ckpt ls`.
constexpr std::size_t stored_steps_shown = 3;

std::string bytes_in(const Json& object, const char* member) {
  return arena::human_bytes(count_in(object, member));
}

// Returns nothing if it may change files anywhere.
std::string confined_of(const Json& daemon) {
  const std::vector<std::string> directories = texts_in(daemon, "confined_to");
  if (directories.empty()) return "";
  return fmt::format("changes files only below {}\n",
                     printable(fmt::format("{}", fmt::join(directories, ", "))));
}

std::string head(const Json& status) {
  const Json daemon = object_in(status, "daemon");
  const Json memory = object_in(status, "memory");
  return fmt::format("ckptd {}, pid {}, up {}, in {}{}\nmemory: {} of {} are Slots; log: {}\n{}",
                     printable(text_in(daemon, "version")), number_in(daemon, "pid"),
                     human_seconds(count_in(daemon, "up_seconds")),
                     printable(text_in(daemon, "runtime_dir")),
                     flag_in(daemon, "is_ending") ? " (ENDING)" : "",
                     bytes_in(memory, "used_bytes"), bytes_in(memory, "budget_bytes"),
                     printable(text_in(daemon, "log_file")), confined_of(daemon));
}

std::string step_text(const Json& object, const char* member) {
  const Json at = object_in(object, member);
  if (at.empty()) return "none";
  return fmt::format("step {} (timeline {})", number_in(at, "step"), number_in(at, "timeline"));
}

// The daemon has looked, and some place did not answer.
bool is_away(const Json& job) {
  const Json reached = job.value("storage_reached", Json());
  return reached.is_boolean() && !reached.get<bool>();
}

std::string durable_of(const Json& job) {
  const Json durable = object_in(job, "durable");
  std::string text = step_text(job, "durable");
  for (const Json& step : list_in(job, "steps")) {
    const bool is_it = number_in(step, "step") == number_in(durable, "step") &&
                       number_in(step, "timeline") == number_in(durable, "timeline");
    if (is_it && flag_in(step, "damaged_there")) text += ", DAMAGED";
  }
  return text + (is_away(job) ? " when last seen" : "");
}

// Describes the job's loss if this node dies.
std::string loss_of(const Json& job, const std::string& node) {
  for (const Json& loss : list_in(job, "if_node_died")) {
    if (text_in(loss, "node") != node) continue;
    const Json from = object_in(loss, "resumes_from");
    const std::string steps = number_in(loss, "steps_lost");
    const std::string then =
        fmt::format("step {}, {}", number_in(from, "step"),
                    flag_in(loss, "from_storage") ? "from storage" : "from memory");
    if (flag_in(job, "ended"))
      return from.empty() ? "nothing: it has ended" : "nothing: it has ended, with " + then;
    if (from.empty() && flag_in(loss, "is_damaged"))
      return "nothing could be restored: what is stored is damaged";
    if (from.empty() && steps == "0") return "nothing to lose yet";
    const std::string lost = counted(steps, "step") + " lost";
    if (from.empty()) return lost + ": nothing could be restored";
    const bool is_doubted = flag_in(loss, "from_storage") && is_away(job);
    return fmt::format("{}: goes on from {}{}", lost, then,
                       is_doubted ? ", which was not reached now" : "");
  }
  return "-";
}

std::string nodes_of(const Json& job) {
  Table table("lllll", {"NODE", "DOMAIN", "ADDRESS", "LIVE", "IF IT DIED NOW"});
  for (const Json& node : list_in(job, "nodes")) {
    const std::string name = text_in(node, "name");
    table.add({name, text_in(node, "failure_domain"), text_in(node, "address"),
               flag_in(node, "live") ? "yes" : "NO", loss_of(job, name)});
  }
  return table.to_text(2, text_width());
}

std::string restored_of(const Json& rank) {
  const Json restored = object_in(rank, "restored");
  if (restored.empty()) return "-";
  const std::string step = "step " + number_in(restored, "step");
  const std::uint64_t stored = count_in(restored, "bytes_from_storage");
  if (stored == 0) return step + " from memory";
  if (stored == count_in(restored, "bytes")) return step + " from storage";
  return fmt::format("{}, {} of {} from storage", step, bytes_in(restored, "bytes_from_storage"),
                     bytes_in(restored, "bytes"));
}

std::string ranks_table(const Json& job) {
  Table table("rrlrrl", {"RANK", "PROCESS", "PHASE", "TIMELINE", "LAST STEP", "RESTORED"});
  for (const Json& rank : list_in(job, "ranks")) {
    table.add({number_in(rank, "rank"), number_in(rank, "process"),
               flag_in(rank, "attached") ? text_in(rank, "phase") : "trainer is gone",
               number_in(rank, "timeline"), number_in(rank, "last_seen"), restored_of(rank)});
  }
  return table.is_empty() ? "" : "\n" + table.to_text(2, text_width());
}

bool is_short_of_trainers(const Json& job) {
  return !flag_in(job, "ended") && !counts_in(job, "ranks_missing").empty();
}

// The loss of a node does not cover a rank that does not train at all.
std::string missing_trainers(const Json& job) {
  const std::vector<std::uint64_t> missing = counts_in(job, "ranks_missing");
  if (missing.size() == count_in(job, "world_size")) return "missing: no rank has a trainer";
  constexpr std::size_t named_max = 8;
  const auto named_end = missing.begin() + std::min(missing.size(), named_max);
  std::string text = fmt::format("missing: no trainer of rank{} {}", missing.size() == 1 ? "" : "s",
                                 fmt::join(missing.begin(), named_end, ", "));
  if (missing.size() > named_max) text += fmt::format(" and {} more", missing.size() - named_max);
  return text;
}

std::string copies_of(const Json& step) {
  const std::string copies = number_in(step, "copies");
  return copies == "1" ? "1 copy" : copies + " copies";
}

std::string storage_of(const Json& step) {
  if (flag_in(step, "damaged_there")) return "DAMAGED";
  return flag_in(step, "on_storage") ? "yes" : "no";
}

std::string steps_of(const Json& job) {
  Table table("rrlll", {"STEP", "TIMELINE", "LEVEL", "IN MEMORY", "ON STORAGE"});
  std::size_t only_stored = 0;
  for (const Json& step : list_in(job, "steps")) {
    if (count_in(step, "ranks_in_memory") == 0 && ++only_stored > stored_steps_shown) continue;
    const std::string level = text_in(step, "level");
    // A daemon of an older version says nothing of other numbers of ranks.
    const Json& saved = step.contains("saved_by") ? step : job;
    const char* const count = step.contains("saved_by") ? "saved_by" : "world_size";
    const std::string memory =
        fmt::format("{} of {}, {}", number_in(step, "ranks_in_memory"),
                    counted(number_in(saved, count), "rank"), copies_of(step));
    table.add({number_in(step, "step"), number_in(step, "timeline"),
               flag_in(step, "abandoned") ? level + ", abandoned" : level, memory,
               storage_of(step)});
  }
  if (table.is_empty()) return "";
  std::string text = "\n" + table.to_text(2, text_width());
  if (only_stored > stored_steps_shown)
    text += fmt::format("  and {} on storage: `ckpt ls` lists them\n",
                        counted(std::to_string(only_stored - stored_steps_shown), "older step"));
  return text;
}

// Those that are alike share a line.
std::string slots_of(const Json& job) {
  std::vector<std::pair<std::vector<std::string>, std::size_t>> rows;
  for (const Json& slot : list_in(job, "slots")) {
    std::vector<std::string> row = {
        fmt::format("rank {}{}", number_in(slot, "rank"), flag_in(slot, "own") ? "" : ", a copy"),
        text_in(slot, "state"), number_in(slot, "step"), number_in(slot, "timeline"),
        bytes_in(slot, "bytes")};
    const auto known = std::ranges::find(rows, row, &decltype(rows)::value_type::first);
    if (known == rows.end()) {
      rows.emplace_back(std::move(row), 1);
    } else {
      ++known->second;
    }
  }
  Table table("llrrrl", {"SLOT OF", "STATE", "STEP", "TIMELINE", "SIZE", ""});
  for (auto& [row, count] : rows) {
    row.push_back(count > 1 ? fmt::format("{} of these", count) : "");
    table.add(std::move(row));
  }
  return table.is_empty() ? "" : "\n" + table.to_text(2, text_width());
}

std::string limit_of(const Json& giving_way, const char* what, const char* rate,
                     const char* step_beside) {
  if (count_in(giving_way, rate) == 0) return "";
  std::string text = fmt::format("{} at most {}/s", what, bytes_in(giving_way, rate));
  const auto ratio = giving_way.find(step_beside);
  if (ratio != giving_way.end() && ratio->is_number())
    text += fmt::format(" (steps were {:+.1f} % as long beside them)",
                        100 * (ratio->get<double>() - 1));
  return text;
}

// Returns nothing if there is no limit.
std::string limits_of(const Json& job) {
  const Json giving_way = object_in(job, "giving_way");
  std::string text = limit_of(giving_way, "flushes", "flush_rate", "step_beside_flush");
  const std::string copies = limit_of(giving_way, "copies", "replica_rate", "step_beside_copies");
  if (!text.empty() && !copies.empty()) text += ", ";
  text += copies;
  return text.empty() ? "" : "  gives way to training: " + text + "\n";
}

std::string memory_kept(const Json& job) {
  const Json kept = job.value("memory_kept_seconds", Json());
  if (!kept.is_number_unsigned()) return {};
  const auto seconds = kept.get<std::uint64_t>();
  const bool has_directory = job.value("directory", Json()).is_string();
  const char* then = "stored and freed";
  if (flag_in(job, "storage_refuses")) then = "freed: the directory takes none of its steps";
  if (!has_directory) then = "freed: there is no directory";
  if (seconds == 0) return fmt::format("  no trainer for long: its memory is {}\n", then);
  return fmt::format("  no trainer here: its memory is kept for {}, then {}\n",
                     human_seconds(seconds), then);
}

std::string second_place_of(const Json& job) {
  const Json place = object_in(job, "second_place");
  if (place.empty()) return {};
  const std::string copying = object_in(place, "copying").empty()
                                  ? ""
                                  : fmt::format(", gets {}", step_text(place, "copying"));
  const std::string has = text_in(place, "trouble") == "-" ? "has " + step_text(place, "newest")
                                                           : std::string("was not reached");
  return fmt::format("  second place: {} ({}), {}{}\n", printable(text_in(place, "directory")),
                     printable(text_in(place, "pace")), has, copying);
}

// As long as the job lives; for some time it is also a part of `degraded`.
std::string gone_of(const Json& job) {
  const std::string gone = text_in(job, "gone_from_directory");
  const bool is_said = text_in(job, "degraded").find(gone) != std::string::npos;
  return gone == "-" || is_said ? "" : "  gone: " + printable(gone) + "\n";
}

// For declared tensors, in the newest stored step.
std::string missing_pieces(const Json& job) {
  const Json missing = object_in(job, "missing_pieces");
  if (missing.empty()) return {};
  return fmt::format("  missing pieces: step {}, {}, {} first: no rank has saved it\n",
                     number_in(missing, "step"), counted(number_in(missing, "tensors"), "tensor"),
                     printable(text_in(missing, "what")));
}

// Ranks that should have the same bytes, and had others in the newest save that was compared.
std::string copies_that_differ(const Json& job) {
  const Json differ = object_in(job, "copies_differ");
  if (differ.empty()) return "";
  return fmt::format("  copies differ: step {}, {}, \"{}\" first (the log has the ranks)\n",
                     number_in(differ, "step"), counted(number_in(differ, "tensors"), "tensor"),
                     printable(text_in(differ, "tensor")));
}

// Until the rank's next trainer comes in nobody's place.
std::string taken_over(const Json& job) {
  std::string text;
  for (const Json& rank : list_in(job, "taken_over")) {
    const std::string step = number_in(rank, "captured");
    text += fmt::format(
        "  taken over: rank {}, by pid {} from pid {}, which was alive and had captured {}, {} "
        "ago: later steps of pid {} are not saved\n",
        number_in(rank, "rank"), number_in(rank, "newer_process"), number_in(rank, "older_process"),
        step == "-" ? "no step" : "step " + step, human_seconds(count_in(rank, "seconds_ago")),
        number_in(rank, "older_process"));
  }
  return text;
}

std::string healed_of(const Json& job) {
  const std::string newest = text_in(object_in(job, "healed"), "newest");
  return newest == "-" ? "" : "  healed: " + printable(newest) + "\n";
}

// Nothing while no Chunk was unchanged.
std::string unchanged_of(const Json& job) {
  const Json sent = object_in(job, "copies_sent");
  const Json flushed = object_in(job, "flushed");
  std::string text;
  if (count_in(sent, "bytes_unchanged") != 0)
    text += fmt::format("  copies: {} sent to peers, {} unchanged and not sent\n",
                        bytes_in(sent, "bytes"), bytes_in(sent, "bytes_unchanged"));
  if (count_in(flushed, "bytes_shared") != 0)
    text += fmt::format("  saves: {} written to storage, {} unchanged and shared\n",
                        bytes_in(flushed, "bytes"), bytes_in(flushed, "bytes_shared"));
  return text;
}

std::string job_text(const Json& job) {
  std::string text = fmt::format(
      "\njob {}: node {}, {}\n  committed {}, on storage {}\n  directory: {}\n",
      printable(text_in(job, "job")), printable(text_in(job, "node")),
      counted(number_in(job, "world_size"), "rank"), step_text(job, "committed"), durable_of(job),
      job.value("directory", Json()).is_string() ? printable(text_in(job, "directory"))
                                                 : "none, memory only");
  text += second_place_of(job) + gone_of(job);
  for (const char* trouble : {"degraded", "waiting"}) {
    const std::string what = text_in(job, trouble);
    if (what != "-") text += fmt::format("  {}: {}\n", trouble, printable(what));
  }
  text += taken_over(job) + missing_pieces(job) + copies_that_differ(job) + healed_of(job);
  text += limits_of(job) + unchanged_of(job);
  if (flag_in(job, "ended")) text += "  the job has ended, its memory is being freed\n";
  text += memory_kept(job);
  if (is_short_of_trainers(job)) text += "  " + missing_trainers(job) + "\n";
  if (!flag_in(job, "sees_all_nodes")) {
    text += fmt::format("  Seen by this node alone; node {} coordinates and sees all.\n",
                        printable(text_in(job, "coordinator")));
  }
  return text + nodes_of(job) + ranks_table(job) + steps_of(job) + slots_of(job);
}

}  // namespace

std::string to_text(const Json& status) {
  std::string text = head(status);
  const Json jobs = list_in(status, "jobs");
  for (const Json& job : jobs) text += job_text(job);
  return jobs.empty() ? text + "no job\n" : text;
}

bool has_trouble(const Json& status) {
  return std::ranges::any_of(list_in(status, "jobs"), [](const Json& job) {
    return text_in(job, "degraded") != "-" || is_short_of_trainers(job);
  });
}

}  // namespace ckpt::cli
