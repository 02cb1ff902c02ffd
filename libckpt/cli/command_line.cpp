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
    "Inspects and manages the checkpoints of libckpt, in the memory of this node's daemon and on\n"
    "storage.";

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
  CLI::App* command = subcommand(app, commands, arguments, "status",
                                 "Show what the daemon of this node holds, per job",
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
  command
      ->add_option("--deadline", arguments.deadline,
                   "Time limit of the flush, such as 90s or 15min")
      ->capture_default_str();
  command->add_flag("--no-flush", arguments.no_flush,
                    "End at once: what is in memory only is lost");
  command->footer(
      "Each job's newest committed step is written to the job's directory first. A job without a\n"
      "directory loses what it has in memory, and a step that some rank has not captured is lost\n"
      "too; both are reported. Meanwhile trainers get no more Slots. If storage fails or the\n"
      "deadline passes, the daemon keeps running, and the command prints the reason and exits\n"
      "with 1; --no-flush ends it anyway. Returns when the process is gone. A trainer that still\n"
      "runs continues, and starts a new daemon. It is no error if no daemon runs.\n\n"
      "Examples:\n  ckpt stop\n  ckpt stop --deadline 30s");

  command = subcommand(app, commands, arguments, "drop", "Free the memory of one job on this node",
                       [](const Arguments& given) { return drop(given.runtime_dir, given.job); });
  add_runtime_dir(command, arguments);
  command->add_option("JOB", arguments.job, "The job, as `ckpt status` names it")->required();
  command->footer(
      "Checkpoints on storage stay. Refused while a trainer of the job is attached.\n\n"
      "Example:\n  ckpt drop gpt2");
}

void add_storage_commands(CLI::App& app, Commands& commands, Arguments& arguments) {
  CLI::App* command =
      subcommand(app, commands, arguments, "ls", "List the checkpoints in a directory",
                 [](const Arguments& given) { return list(given.path); });
  command->add_option("DIR", arguments.path, "The job's directory (option `dir`)")->required();
  command->footer(
      "Reads manifests and file sizes, but not the files: `ckpt verify` does that. Needs no\n"
      "daemon. Exits with 1 if a checkpoint is damaged, or a file beside the checkpoints\n"
      "(.libckpt/run.json, .libckpt/timelines.json, latest), and if no checkpoint is whole.\n\n"
      "Examples:\n  ckpt ls /ckpt/gpt2\n  ckpt ls /ckpt/gpt2 --json | jq '.checkpoints[-1].name'");

  command =
      subcommand(app, commands, arguments, "verify", "Read checkpoints and compare every checksum",
                 [](const Arguments& given) { return verify(given.path, given.newest); });
  command->add_option("PATH", arguments.path, "One checkpoint (step-...), or a directory of them")
      ->required();
  command->add_flag("--newest", arguments.newest, "Only the newest checkpoint of a directory");
  command->footer(
      "Needs no daemon. Exits with 1 if a byte differs from what the manifest says, and names its\n"
      "file and chunk (4 MiB). For a directory, exits with 1 also if a file beside the\n"
      "checkpoints is damaged, or if no checkpoint is whole.\n\n"
      "Examples:\n  ckpt verify /ckpt/gpt2/step-000000900\n  ckpt verify --newest /ckpt/gpt2");

  command =
      subcommand(app, commands, arguments, "doctor", "Check this machine and the effective options",
                 [](const Arguments& given) { return doctor({given.runtime_dir, given.dir}); });
  add_runtime_dir(command, arguments);
  command->add_option("--dir", arguments.dir,
                      "Directory of checkpoints to check; default: the option `dir`");
  command->footer(
      "Checks memory and budget, locked memory, descriptors, storage, log, secret and daemon,\n"
      "tries the port where the daemon would listen, names the job, container or session that the\n"
      "daemon would end with, and prints every option with its value and origin. Run it where a\n"
      "trainer would run, with the same environment. Exits with 1 if something will not work.\n\n"
      "Examples:\n  ckpt doctor\n  LIBCKPT_CONFIG=job.conf ckpt doctor --dir /ckpt/gpt2");
}

std::string message_of(const Error& error) {
  const std::string cause = error.cause() ? " (" + error.cause().message() + ")" : "";
  return printable(error.text() + cause);
}

int print_error(const std::string& command, const Error& error, bool json) {
  const bool is_wrong_use = error.code() == Errc::invalid_argument;
  if (json) {
    Json printed;
    printed["error"] = {{"code", to_string(error.code())}, {"text", message_of(error)}};
    std::puts(printed.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  }
  fmt::print(stderr, "ckpt {}: {}\n", command, message_of(error));
  return is_wrong_use ? exit_wrong_use : exit_trouble;
}

int print(const std::string& command, const Result<Outcome>& outcome, bool json) {
  if (!outcome) return print_error(command, outcome.error(), json);
  if (json) {
    std::puts(outcome->json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::fputs(outcome->text.c_str(), stdout);
  }
  // If a redirected disk is full, the output must not pass for an answer.
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "ckpt {}: its output could not be written\n", command);
    return exit_trouble;
  }
  return outcome->is_trouble ? exit_trouble : exit_ok;
}

// Names the unknown command if that is the mistake; else returns the parser's message.
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
    return print_error("(arguments)", Error(Errc::invalid_argument, text), json);
  }
  for (const auto& [command, carry_out] : commands.all) {
    if (command->parsed()) return print(command->get_name(), carry_out(arguments), arguments.json);
  }
  return exit_wrong_use;
}

}  // namespace ckpt::cli
