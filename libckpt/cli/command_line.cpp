#include "cli/command_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ckpt/version.hpp>
#include <cstdio>
#include <span>

#include "base/log.hpp"
#include "cli/command_table.hpp"
#include "cli/commands.hpp"
#include "cli/fold.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "daemon/daemon_options.hpp"

namespace ckpt::cli {

namespace {

constexpr const char* description =
    "Inspects and manages the checkpoints of libckpt, in the memory of this node's daemon and on\n"
    "storage.";

constexpr const char* footer =
    "Exit codes: 0 all is well; 1 trouble was found, or something could not be reached, read or\n"
    "written; 2 wrong use: the same command cannot succeed as it stands.\n\n"
    "`ckpt COMMAND --help` has the details and examples. With --json, standard output is one JSON\n"
    "object, also after an error; errors for people go to standard error.";

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
                    "End at once: steps that only memory has are lost");
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
  command
      ->add_option("DIR", arguments.path,
                   "The job's directory (option `dir`), or a parent of such ones")
      ->required();
  command->footer(
      "Reads manifests and file sizes, but not the files: `ckpt verify` does that. METRICS are\n"
      "those that were given with the save. A step's name may end in .g2 or a higher number: it\n"
      "was saved again, on a later timeline, beside the older one. MISPLACED is a link, or a\n"
      "step under another one's name. Needs no daemon. Exits with 1 if a checkpoint is damaged,\n"
      "or a file beside the checkpoints (.libckpt/run.json, .libckpt/timelines.json, latest),\n"
      "and if no checkpoint is whole.\n\n"
      "Examples:\n  ckpt ls /ckpt/gpt2\n  ckpt ls /ckpt/gpt2 --json | jq '.checkpoints[-1].name'");

  command = subcommand(app, commands, arguments, "verify",
                       "Read checkpoints and compare every checksum", [](const Arguments& given) {
                         return given.repairs ? repair({given.path, given.from})
                                              : verify(given.path, given.newest);
                       });
  command
      ->add_option("PATH", arguments.path,
                   "One checkpoint (step-...), a directory of them, or a parent of such ones")
      ->required();
  CLI::Option* newest =
      command->add_flag("--newest", arguments.newest, "Only the newest checkpoint of a directory");
  CLI::Option* from = command->add_option("--from", arguments.from,
                                          "Another copy: a checkpoint, or a directory of them");
  CLI::Option* repairs =
      command->add_flag("--repair", arguments.repairs, "First replace what is damaged, from there");
  repairs->needs(from)->excludes(newest);
  from->needs(repairs);
  command->footer(
      "Needs no daemon. Exits with 1 if a byte differs from what the manifest says, and names its\n"
      "file and chunk (4 MiB). For a directory, exits with 1 also if a file beside the\n"
      "checkpoints is damaged, or if no checkpoint is whole. UNREADABLE is what could not be\n"
      "read, as another user's files: it exits with 1, too, and says nothing about the bytes.\n\n"
      "With --repair, a damaged file is written anew, chunk by chunk: from itself where it is\n"
      "good, else from the same step of the same run in --from, which may be a bucket. It takes\n"
      "the place of the damaged one when all files of the checkpoint are whole; else the\n"
      "checkpoint is left as it is, and named. A compressed file comes whole from the other copy.\n"
      "Manifests are not repaired: move the step's directory away (mv, or your bucket's own\n"
      "tool), then `ckpt cp` brings back a whole one.\n"
      "A good step that a restore to an older one has abandoned is reported as such: the job\n"
      "does not take it any more, and the next deletion takes it first. `ckpt cp STEP ELSEWHERE`\n"
      "keeps it, and the copy is loaded by its path.\n"
      "A good step may lack parts of tensors, which no rank has saved. The first one is named,\n"
      "and the others are counted (JSON: missing_pieces). The exit code is 0 all the same, since\n"
      "ranks may leave parts out on purpose.\n\n"
      "Examples:\n  ckpt verify /ckpt/gpt2/step-000000900\n  ckpt verify --newest /ckpt/gpt2\n"
      "  ckpt verify --repair /ckpt/gpt2 --from s3://archive/gpt2");

  command =
      subcommand(app, commands, arguments, "doctor", "Check this machine and the effective options",
                 [](const Arguments& given) { return doctor({given.runtime_dir, given.dir}); });
  add_runtime_dir(command, arguments);
  command->add_option("--dir", arguments.dir,
                      "Directory of checkpoints to check; default: the option `dir`");
  command->footer(
      "Checks memory and budget, locked memory, descriptors, storage, log, secret and daemon,\n"
      "finds a directory that is not the job's, tries the port where the daemon would listen,\n"
      "names the job, container or session that the daemon would end with, and prints every\n"
      "option with its value and origin. Run it where a trainer would run, with the same\n"
      "environment. Exits with 1 if something will not work.\n\n"
      "Examples:\n  ckpt doctor\n  LIBCKPT_CONFIG=job.conf ckpt doctor --dir /ckpt/gpt2");
}

constexpr const char* checkpoint_help =
    "One checkpoint (step-...), a directory of them, or memory:JOB: the newest step in a job's "
    "memory";

constexpr const char* names_help =
    "Only tensors whose names match; as in the shell, and * goes over dots. May be repeated";

void add_names(CLI::App* command, std::vector<std::string>& names) {
  // One for each --names: the next word may be a path.
  command->add_option("--names", names, names_help)->type_name("GLOB")->expected(1)->take_all();
}

void add_inspect(CLI::App& app, Commands& commands, Arguments& arguments) {
  InspectOptions& given = arguments.inspect;
  CLI::App* command = subcommand(app, commands, arguments, "inspect",
                                 "List the tensors of a checkpoint", [](const Arguments& all) {
                                   InspectOptions options = all.inspect;
                                   options.runtime_dir = all.runtime_dir;
                                   return inspect(options);
                                 });
  command->add_option("PATH", given.path, checkpoint_help)->required();
  add_runtime_dir(command, arguments);
  add_names(command, given.names);
  command->add_flag("--pieces", given.pieces, "Also list each rank's piece of each tensor");
  command->footer(
      "Shows names, types, shapes and sizes, which ranks have what, and the blobs (what is no\n"
      "tensor). For a directory it shows the newest whole checkpoint. Reads descriptions, and not\n"
      "the tensors. With --json each part has its place.\n\n"
      "Examples:\n  ckpt inspect /ckpt/gpt2\n"
      "  ckpt inspect /ckpt/gpt2/step-000000900 --names 'model.*' --pieces\n"
      "  ckpt inspect /ckpt/gpt2 --json | jq -r '.tensors[].name'\n"
      "  ckpt inspect memory:gpt2");
}

void add_export(CLI::App& app, Commands& commands, Arguments& arguments) {
  ExportOptions& given = arguments.exported;
  CLI::App* command = subcommand(app, commands, arguments, "export",
                                 "Write tensors to safetensors files, whole and in any world",
                                 [](const Arguments& all) {
                                   ExportOptions options = all.exported;
                                   options.json = all.json;
                                   options.runtime_dir = all.runtime_dir;
                                   return export_tensors(options);
                                 });
  command->add_option("PATH", given.path, checkpoint_help)->required();
  command->add_option("OUT", given.out, "The file to write; with hf and dcp the directory")
      ->required();
  command
      ->add_option(
          "--format", given.format,
          "safetensors: one file. torch: one file that torch.load opens. hf: the files of a "
          "model as Hugging Face loads them. dcp: the directory that torch.distributed.checkpoint "
          "loads, in any world")
      ->default_val("safetensors");
  command->add_option(
      "--max-shard-size", given.max_shard_size,
      "Only with --format hf: tensors of one file, such as 500MB or 2GiB; default: 5GB");
  add_names(command, given.names);
  command->add_option("--strip", given.strip,
                      "Only tensors whose names begin so, and without this in their names");
  command->add_option("--rank", given.rank,
                      "Where several ranks have a whole tensor of one name: that of this rank");
  command->add_flag("--copy-tied", given.copy_tied,
                    "Write a tensor of several names under each; default: once");
  command->add_flag("--force", given.force, "Replace what is there; no file of a checkpoint");
  add_runtime_dir(command, arguments);
  command->footer(
      "Puts the pieces of all ranks together, and verifies every chunk that it reads. Types stay\n"
      "as they are. A tensor that does not lie in row-major order is written in that order. A\n"
      "directory stands for its newest whole checkpoint; the exit is 1 if a newer one is "
      "damaged;\n"
      "\"DIR, OTHER\" names both places of a run, whose damaged copies of a step are put "
      "together.\n"
      "Needs some 400 MB of memory.\n\n"
      "memory:JOB, or memory:JOB/step-000000900, is a step in the memory of a job that this\n"
      "machine's daemon serves; with several nodes, ask the one that coordinates the job. "
      "Training\n"
      "goes on, and takes the memory of an older step when it needs it: then the command fails,\n"
      "and leaves nothing.\n\n"
      "Tied tensors are written under one name, and the metadata has the other, as\n"
      "safetensors.torch.save_model does; with --format torch and dcp both are there and share\n"
      "their bytes.\n"
      "Whole tensors that several ranks have under one name must have the same bytes, or --rank\n"
      "must say whose count.\n\n"
      "PATH and OUT may lie in buckets (s3://BUCKET/...).\n\n"
      "Files are written as .NAME.HEX.partial, synced, and renamed when all are whole: the index\n"
      "last. One to the same place, an hour later, removes what a killed export left of these, if\n"
      "no other is under way in that directory on this machine. Exits with 1, and leaves what was\n"
      "there, if an element is missing or damaged.\n\n"
      "Examples:\n"
      "  ckpt export /ckpt/gpt2 model.safetensors --strip model.\n"
      "  ckpt export /ckpt/gpt2 model.pt --format torch --strip model.\n"
      "  ckpt export /ckpt/llama/step-000000900 llama-hf --format hf --strip model.\n"
      "  ckpt export /ckpt/gpt2 gpt2-dcp --format dcp\n"
      "  ckpt export memory:gpt2 now.safetensors --strip model.\n"
      "then in Python:\n"
      "  model.load_state_dict(safetensors.torch.load_file(\"model.safetensors\"))\n"
      "  model.load_state_dict(torch.load(\"model.pt\", weights_only=True))\n"
      "  torch.distributed.checkpoint.load(state_dict, checkpoint_id=\"gpt2-dcp\")");
}

void add_diff(CLI::App& app, Commands& commands, Arguments& arguments) {
  DiffOptions& given = arguments.diff;
  CLI::App* command =
      subcommand(app, commands, arguments, "diff",
                 "Compare the tensors and blobs of two checkpoints", [](const Arguments& all) {
                   DiffOptions options = all.diff;
                   options.runtime_dir = all.runtime_dir;
                   return diff(options);
                 });
  command->add_option("A", given.one, checkpoint_help)->required();
  command->add_option("B", given.other, "Another one")->required();
  add_runtime_dir(command, arguments);
  add_names(command, given.names);
  command->footer(
      "Any number of ranks may have saved each: tensors are compared as wholes. Says how many\n"
      "elements differ, and by how much at most; elements differ if their bytes do. Blobs (what "
      "is\n"
      "no tensor) are compared if as many ranks saved both. Exits with 0 if all is the same, and\n"
      "with 1 if something differs or cannot be read, or if a newer step than A or B is "
      "damaged.\n\n"
      "Examples:\n  ckpt diff /ckpt/gpt2/step-000000800 /ckpt/gpt2/step-000000900\n"
      "  ckpt diff /ckpt/before /ckpt/after --names 'model.*' --json\n"
      "  ckpt diff /ckpt/gpt2 memory:gpt2");
}

std::string message_of(const Error& error) {
  // The text itself says that a bucket is missing: "no such file" would mislead.
  const bool says_more = error.cause() && !(error.code() == Errc::invalid_argument &&
                                            error.cause() == std::errc::no_such_file_or_directory);
  const std::string cause = says_more ? " (" + error.cause().message() + ")" : "";
  return printable(error.text() + cause);
}

int print_error(const std::string& command, const Error& error, bool json) {
  // A bucket that is not there is like a directory that is not: the command was well-formed.
  const bool is_wrong_use = error.code() == Errc::invalid_argument &&
                            error.cause() != std::errc::no_such_file_or_directory;
  if (json) {
    Json printed;
    printed["error"] = {{"code", to_string(error.code())}, {"text", message_of(error)}};
    std::puts(printed.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  }
  const std::string text = fmt::format("ckpt {}: {}\n", command, message_of(error));
  std::fputs(folded(text, error_width()).c_str(), stderr);
  return is_wrong_use ? exit_wrong_use : exit_trouble;
}

int print(const std::string& command, const Result<Outcome>& outcome, bool json) {
  if (!outcome) return print_error(command, outcome.error(), json);
  if (json) {
    std::puts(outcome->json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    // A script that reads a pipe finds whole lines, also where COLUMNS is set.
    const bool is_for_people = !outcome->is_verbatim && ::isatty(STDOUT_FILENO) == 1;
    const std::size_t width = is_for_people ? text_width() : 0;
    std::fputs(folded(outcome->text, width).c_str(), stdout);
  }
  // If a redirected disk is full, the output must not pass for an answer.
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "ckpt {}: its output could not be written\n", command);
    return exit_trouble;
  }
  return outcome->is_trouble ? exit_trouble : exit_ok;
}

// The first option that the command does not have; empty: it has all of them. The parser looks for
// missing arguments first.
std::string unknown_option(const CLI::App& command, std::span<const char* const> given) {
  for (const std::string_view argument : given) {
    if (argument == "--") break;
    const std::string name(argument.substr(0, argument.find('=')));
    if (name.starts_with("--") && command.get_option_no_throw(name) == nullptr) return name;
  }
  return {};
}

// Names the unknown command or option if that is the mistake; else returns the parser's message.
// Says where help is.
std::string usage_problem(const CLI::ParseError& error, const CLI::App& app,
                          std::span<const char* const> given) {
  const std::string first = given.size() > 1 ? given[1] : "";
  const bool is_known =
      !app.get_subcommands([&](const CLI::App* one) { return one->get_name() == first; }).empty();
  const char* const list = "; `ckpt --help` lists the commands";
  if (is_known) {
    std::string problem = error.what();
    if (const auto name = unknown_option(*app.get_subcommand(first), given.subspan(2));
        !name.empty())
      problem = fmt::format("there is no option {}", name);
    return fmt::format("{}; `ckpt {} --help` has its arguments", problem, first);
  }
  if (first.empty() || first.starts_with('-')) return error.what() + std::string(list);
  return fmt::format("there is no command \"{}\"{}", first, list);
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
  add_inspect(app, commands, arguments);
  add_export(app, commands, arguments);
  add_diff(app, commands, arguments);
  add_tending_commands(app, commands, arguments);
  try {
    app.parse(count, arguments_given);
  } catch (const CLI::ParseError& error) {
    const bool is_help = dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr;
    if (is_help) std::fputs(folded_help(app.help()).c_str(), stdout);
    if (error.get_exit_code() == 0) return is_help ? exit_ok : app.exit(error);
    const std::span<const char* const> given(arguments_given, static_cast<std::size_t>(count));
    const bool json = std::ranges::any_of(
        given, [](const char* argument) { return std::string_view(argument) == "--json"; });
    const Error problem(Errc::invalid_argument, usage_problem(error, app, given));
    return print_error("(arguments)", problem, json);
  }
  for (const auto& [command, carry_out] : commands.all) {
    if (command->parsed()) return print(command->get_name(), carry_out(arguments), arguments.json);
  }
  return exit_wrong_use;
}

}  // namespace ckpt::cli
