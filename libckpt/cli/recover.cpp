#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"
#include "cli/json_read.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace ckpt::cli {

namespace {

Result<std::vector<std::string>> jobs_of(const std::string& runtime_dir) {
  CKPT_TRY(const auto answer, ask_daemon(runtime_dir, wire::control::AskStatus{}, answer_time));
  CKPT_TRY(const Json status, parse_answer(answer));
  std::vector<std::string> names;
  for (const Json& job : list_in(status, "jobs")) names.push_back(text_in(job, "job"));
  return names;
}

std::string restore_text(const Json& job) {
  std::string text = fmt::format("job {}: ", printable(text_in(job, "job")));
  const Json chosen = object_in(job, "chosen");
  if (!chosen.empty()) {
    text += fmt::format("a restore would choose step {} of timeline {}: {}\n",
                        number_in(chosen, "step"), number_in(chosen, "timeline"),
                        printable(text_in(job, "reason")));
  } else {
    text += fmt::format("nothing can be restored: {}\n", printable(text_in(job, "reason")));
  }
  if (!flag_in(job, "sees_all_nodes")) {
    text +=
        fmt::format("  Seen by node {} alone, which does not coordinate the job: ask node {}.\n",
                    printable(text_in(job, "node")), printable(text_in(job, "coordinator")));
  }
  Table table("rrll", {"TIMELINE", "STEP", "IN MEMORY", "VERDICT"});
  for (const Json& candidate : list_in(job, "candidates")) {
    table.add({number_in(candidate, "timeline"), number_in(candidate, "step"),
               flag_in(candidate, "in_memory") ? "yes" : "no", text_in(candidate, "verdict")});
  }
  if (!table.is_empty()) text += table.to_text(2, text_width());
  return text;
}

}  // namespace

Result<Outcome> recover(const std::string& runtime_dir, const std::string& job) {
  std::vector<std::string> names{job};
  if (job.empty()) {
    CKPT_TRY(names, jobs_of(runtime_dir));
  }
  Outcome outcome;
  outcome.json["jobs"] = Json::array();
  for (const std::string& name : names) {
    wire::control::AskRecover question;
    question.job = name;
    CKPT_TRY(const auto answer, ask_daemon(runtime_dir, std::move(question), answer_time));
    CKPT_TRY(const Json answered, parse_answer(answer));
    if (answered.contains("error")) {
      return fail(Errc::not_found,
                  fmt::format("explain the recovery of job {}: this daemon holds nothing of it; "
                              "`ckpt status` lists its jobs, `ckpt ls DIR` what lies on storage",
                              name));
    }
    if (object_in(answered, "chosen").empty()) outcome.is_trouble = true;
    outcome.json["jobs"].push_back(answered);
    outcome.text += restore_text(answered);
  }
  if (names.empty()) outcome.text = "The daemon holds no job.\n";
  return outcome;
}

}  // namespace ckpt::cli
