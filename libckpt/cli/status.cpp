#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"
#include "cli/status_text.hpp"

namespace ckpt::cli {

Result<Outcome> status(const std::string& runtime_dir) {
  CKPT_TRY(const auto answer, ask_daemon(runtime_dir, wire::control::AskStatus{}, answer_time));
  Outcome outcome;
  CKPT_TRY(outcome.json, parse_answer(answer));
  outcome.text = to_text(outcome.json);
  outcome.is_trouble = has_trouble(outcome.json);
  return outcome;
}

}  // namespace ckpt::cli
