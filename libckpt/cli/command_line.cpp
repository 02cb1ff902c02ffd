#include "cli/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ckpt/version.hpp>
#include <cstdio>
#include <functional>
#include <span>

#include "base/log.hpp"
#include "cli/commands.hpp"
#include "cli/table.hpp"
#include "daemon/daemon_options.hpp"

namespace ckpt::cli {

namespace {

constexpr const char* description =
    "Looks after the checkpoints of libckpt: what the daemon of this node holds in memory, and\n"
    "what lies on storage.";

constexpr const char* footer =
    "Exit codes: 0 all is well, 1 trouble was found, 2 wrong use.\n"
    "`ckpt COMMAND --help` has the details and examples. With --json, standard output is one JSON\n"
    "object, also after an error; errors for people go to standard error.";

struct Arguments {
  bool json = false;
  std::string runtime_dir;
  std::string job;
  std::string path;
  std::string dir;
  bool newest = false;
  bool dry_run = false;
  bool no_flush = false;
  std::string deadline = "5min";
};

using Command = std::function<Result<Outcome>(const Arguments&)>;

struct Commands {
  std::vector<std::pair<CLI::App*, Command>> all;
};

CLI::App* subcommand(CLI::App& app, Commands& commands, Arguments& arguments, std::string name,
                     std::string what, Command command) {
  CLI::App* added = app.add_subcommand(std::move(name), std::move(what));
  added->add_flag("--json", arguments.json, "Print one JSON object instead of text");
  commands.all.emplace_back(added, std::move(command));
  return added;
}

void add_runtime_dir(CLI::App* command, Arguments& arguments) {
  command->add_option(
      "--runtime-dir", arguments.runtime_dir,
      "Directory of the daemon's socket; default: LIBCKPT_RUNTIME_DIR, else by user");
}

void add_daemon_commands(CLI::App& app, Commands& commands, Arguments& arguments) {
  CLI::App* command =
      subcommand(app, commands, arguments, "status", "What the daemon of this node holds, per job",
                 [](const Arguments& given) { return status(given.runtime_dir); });
  add_runtime_dir(command, arguments);
  command->footer(
      "Shows nodes, Slots, the level each step has reached, and what would be lost if each node\n"
      "died now. Exits with 1 when no daemon runs, or when a job is degraded or lacks\n"
      "trainers.\n\n"
      "Examples:\n  ckpt status\n  ckpt status --json | jq '.jobs[].committed.step'");

  command = subcommand(
      app, commands, arguments, "recover", "Explain which step a restore would choose, and why",
      [](const Arguments& given) { return recover(given.runtime_dir, given.job); });
  add_runtime_dir(command, arguments);
  command->add_flag("--dry-run", arguments.dry_run, "Only explain; required")->required();
  command->add_option("JOB", arguments.job, "Only this job; default: all jobs of the daemon");
  command->footer(
      "The recovery itself needs no command: restarted trainers do it in restore().\n"
      "Exits with 1 when there is no step that could be restored.\n\n"
      "Examples:\n  ckpt recover --dry-run\n  ckpt recover --dry-run gpt2 --json");

  command = subcommand(app, commands, arguments, "stop", "Flush what is held, and end the daemon",
                       [](const Arguments& given) -> Result<Outcome> {
                         CKPT_TRY(const auto deadline, daemon::parse_duration(given.deadline));
                         return stop(given.runtime_dir, deadline, !given.no_flush);
                       });
  add_runtime_dir(command, arguments);
  command->add_option("--deadline", arguments.deadline, "For the flush, as 90s or 15min")
      ->capture_default_str();
  command->add_flag("--no-flush", arguments.no_flush,
                    "End at once: what is in memory only is lost");
  command->footer(
      "Each job's newest committed step is written to the job's directory first; a job without a\n"
      "directory loses what it has in memory, and so does a step that some rank has not captured;\n"
      "both are told. Meanwhile trainers get no more Slots. When storage fails or the deadline\n"
      "passes, the daemon goes on, the reason is told, and the exit code is 1; --no-flush ends it\n"
      "all the same. Returns when the process is gone. A trainer that still runs goes on, and\n"
      "starts a new daemon. That no daemon runs is no error.\n\n"
      "Examples:\n  ckpt stop\n  ckpt stop --deadline 30s");

  command = subcommand(app, commands, arguments, "drop", "Free the memory of one job on this node",
                       [](const Arguments& given) { return drop(given.runtime_dir, given.job); });
  add_runtime_dir(command, arguments);
  command->add_option("JOB", arguments.job, "The job, as `ckpt status` names it")->required();
  command->footer(
      "What lies on storage stays. Refused while a trainer of the job is attached.\n\n"
      "Example:\n  ckpt drop gpt2");
}

void add_storage_commands(CLI::App& app, Commands& commands, Arguments& arguments) {
  CLI::App* command =
      subcommand(app, commands, arguments, "ls", "List the checkpoints in a directory",
                 [](const Arguments& given) { return list(given.path); });
  command->add_option("DIR", arguments.path, "The job's directory (option `dir`)")->required();
  command->footer(
      "Reads manifests and file sizes, and not the files: `ckpt verify` does that. Needs no "
      "daemon.\n"
      "Exits with 1 when one of them is damaged, or a file beside them (.libckpt/run.json,\n"
      ".libckpt/timelines.json, latest), and when there is no whole checkpoint at all.\n\n"
      "Examples:\n  ckpt ls /ckpt/gpt2\n  ckpt ls /ckpt/gpt2 --json | jq '.checkpoints[-1].name'");

  command =
      subcommand(app, commands, arguments, "verify", "Read checkpoints and compare every checksum",
                 [](const Arguments& given) { return verify(given.path, given.newest); });
  command->add_option("PATH", arguments.path, "One checkpoint (step-...), or a directory of them")
      ->required();
  command->add_flag("--newest", arguments.newest, "Of a directory, only its newest checkpoint");
  command->footer(
      "Needs no daemon. Exits with 1 when a byte is not what its manifest says, and names the "
      "file\n"
      "and the chunk (4 MiB) of it; of a directory also when a file beside the checkpoints is\n"
      "damaged, and when there is no whole checkpoint.\n\n"
      "Examples:\n  ckpt verify /ckpt/gpt2/step-000000900\n  ckpt verify --newest /ckpt/gpt2");

  command =
      subcommand(app, commands, arguments, "doctor", "Check this machine and the effective options",
                 [](const Arguments& given) { return doctor({given.runtime_dir, given.dir}); });
  add_runtime_dir(command, arguments);
  command->add_option("--dir", arguments.dir,
                      "Directory of checkpoints to check; default: the option `dir`");
  command->footer(
      "Looks at memory and budget, locked memory, descriptors, storage, log, secret and daemon,\n"
      "tries the port where the daemon would listen, says with what the daemon dies (a job, a\n"
      "container, a session), and prints every option with its value and where it came from. Run\n"
      "it where a trainer would run, with the same environment. Exits with 1 when something will\n"
      "not work.\n\n"
      "Examples:\n  ckpt doctor\n  LIBCKPT_CONFIG=job.conf ckpt doctor --dir /ckpt/gpt2");
}

std::string message_of(const Error& error) {
  const std::string cause = error.cause() ? " (" + error.cause().message() + ")" : "";
  return printable(error.text() + cause);
}

int tell_error(const std::string& command, const Error& error, bool json) {
  const bool is_wrong_use = error.code() == Errc::invalid_argument;
  if (json) {
    Json told;
    told["error"] = {{"code", to_string(error.code())}, {"text", message_of(error)}};
    std::puts(told.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  }
  fmt::print(stderr, "ckpt {}: {}\n", command, message_of(error));
  return is_wrong_use ? exit_wrong_use : exit_trouble;
}

int tell(const std::string& command, const Result<Outcome>& outcome, bool json) {
  if (!outcome) return tell_error(command, outcome.error(), json);
  if (json) {
    std::puts(outcome->json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::fputs(outcome->text.c_str(), stdout);
  }
  // A full disk behind a redirection must not look like an answer.
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "ckpt {}: its output could not be written\n", command);
    return exit_trouble;
  }
  return outcome->is_trouble ? exit_trouble : exit_ok;
}

// The command that there is not, where that is the mistake; else what the parser says.
std::string problem_of(const CLI::ParseError& error, const CLI::App& app,
                       std::span<const char* const> given) {
  const std::string first = given.size() > 1 ? given[1] : "";
  const bool is_known =
      !app.get_subcommands([&](const CLI::App* one) { return one->get_name() == first; }).empty();
  if (first.empty() || first.starts_with('-') || is_known) return error.what();
  return fmt::format("there is no command \"{}\"", first);
}

}  // namespace

int run(int count, const char* const* arguments_given) {
  Log::set_program("ckpt");
  Log::set_level(LogLevel::warning);
  CLI::App app(description, "ckpt");
  app.set_version_flag("--version", std::string("ckpt " CKPT_VERSION_STRING));
  app.require_subcommand(1);
  app.footer(footer);
  Arguments arguments;
  Commands commands;
  add_daemon_commands(app, commands, arguments);
  add_storage_commands(app, commands, arguments);
  try {
    app.parse(count, arguments_given);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help or --version.
    const std::span<const char* const> given(arguments_given, static_cast<std::size_t>(count));
    const bool json = std::ranges::any_of(
        given, [](const char* argument) { return std::string_view(argument) == "--json"; });
    const std::string text = problem_of(error, app, given) + "; `ckpt --help` lists the commands";
    return tell_error("(arguments)", Error(Errc::invalid_argument, text), json);
  }
  for (const auto& [command, carry_out] : commands.all) {
    if (command->parsed()) return tell(command->get_name(), carry_out(arguments), arguments.json);
  }
  return exit_wrong_use;
}

}  // namespace ckpt::cli
