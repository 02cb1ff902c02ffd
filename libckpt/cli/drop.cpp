#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"

namespace ckpt::cli {

Result<Outcome> drop(const std::string& runtime_dir, const std::string& job) {
  wire::control::Drop question;
  question.job = job;
  CKPT_TRY(const auto answer, ask_daemon(runtime_dir, std::move(question), answer_time));
  Outcome outcome;
  outcome.json["dropped"] = job;
  outcome.text = fmt::format("The memory of job {} on this node is free.\n", job);
  return outcome;
}

}  // namespace ckpt::cli
