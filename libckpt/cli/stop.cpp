#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"
#include "cli/json_read.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {

namespace {

// A daemon's end waits for no copy. Somebody who gives the first place up then must know that.
std::string describe_second_place(const Json& job) {
  const Json place = object_in(job, "second_place");
  if (place.empty()) return {};
  const std::string durable = number_in(job, "durable"), there = number_in(place, "newest");
  const std::string name = printable(text_in(place, "directory"));
  if (there == durable) return fmt::format(", and in the second place {}", name);
  return fmt::format("; the second place {} has {}, and gets newer ones when the job runs again",
                     name, there == "-" ? "none that is known here" : "step " + there);
}

// Describes what the daemon's end meant for one job.
std::string fate_text(const Json& job) {
  const std::string durable = number_in(job, "durable"), lost = number_in(job, "lost");
  const bool has_directory = !job.value("directory", "").empty();
  std::string text = fmt::format("  job {}: ", printable(text_in(job, "job")));
  text += durable == "-" ? "no step is on storage" : fmt::format("step {} is on storage", durable);
  if (lost != "-") {
    text += fmt::format("; step {} was in memory only, and is lost", lost);
    if (!has_directory) text += " (the job has no directory)";
  }
  text += describe_second_place(job);
  if (job.value("has_trainer", false))
    text += "; its trainer still runs, and soon starts a daemon again";
  return text + "\n";
}

void describe_end(Outcome& outcome, const Json& jobs, bool flush) {
  const bool is_lost = std::any_of(jobs.begin(), jobs.end(),
                                   [](const Json& job) { return number_in(job, "lost") != "-"; });
  outcome.json["flushed"] = flush;
  outcome.json["jobs"] = jobs;
  outcome.text = "The daemon has ended, without a flush.\n";
  if (flush) {
    outcome.text = is_lost ? "The daemon has ended, and flushed what could be flushed.\n"
                           : "The daemon has flushed what it held, and ended.\n";
  }
  for (const Json& job : jobs) outcome.text += fate_text(job);
}

// The daemon keeps running: adds what to do about it.
Unexpected refuse(Error error) {
  return fail(std::move(error).context(
      "the daemon goes on, since not all could be flushed (--no-flush ends it all the same, and "
      "loses steps that only memory has)"));
}

}  // namespace

Result<Outcome> stop(const std::string& runtime_dir, std::chrono::milliseconds deadline,
                     bool flush) {
  Outcome outcome;
  const auto directory = os::RuntimeDirectory::find(runtime_dir);
  Result<wire::control::Answer> stopped = fail(Errc::not_found, "there is no runtime directory");
  if (directory) {
    stopped = stop_daemon(*directory, deadline, flush);
  } else if (directory.error().code() != Errc::not_found) {
    return fail(Error(directory.error()));
  }
  if (stopped && !stopped->result) return refuse(std::move(stopped->result).error());
  outcome.json["stopped"] = stopped.has_value();
  if (stopped) {
    CKPT_TRY(const Json answered, parse_answer(*stopped));
    describe_end(outcome, list_in(answered, "jobs"), flush);
    return outcome;
  }
  // It has already ended, as asked.
  if (stopped.error().code() != Errc::not_found) return fail(std::move(stopped).error());
  const std::string where = directory ? directory->path() : runtime_dir;
  outcome.json["reason"] = "no daemon runs";
  outcome.text = fmt::format("No daemon runs{}.\n", where.empty() ? "" : " in " + where);
  return outcome;
}

}  // namespace ckpt::cli
