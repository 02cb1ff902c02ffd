// CommandTable: the commands of `ckpt`, each with its arguments and what carries it out.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"

namespace ckpt::cli {

// The words of a job's options, which `gc` has as well.
struct GcArguments {
  Options words;
  std::string keep_every;
  std::string best_mode = "min";
  const CLI::Option* every_option = nullptr;  // Whether they were given.
  const CLI::Option* best_option = nullptr;
};

// Arguments: those of all commands; the parser fills in those of the given one.
struct Arguments {
  bool json = false;
  std::string runtime_dir;
  std::string job;
  std::string path;
  std::string dir;
  std::string shell;
  std::vector<std::string> paths;
  bool newest = false;
  bool repairs = false;
  std::string from;
  bool dry_run = false;
  bool no_flush = false;
  std::string deadline = "5min";
  InspectOptions inspect;
  ExportOptions exported;
  DiffOptions diff;
  GcArguments gc;
  CopyOptions copied;
  ImportOptions imported;
};

using Command = std::function<Result<Outcome>(const Arguments&)>;

struct Commands {
  std::vector<std::pair<CLI::App*, Command>> all;
};

CLI::App* subcommand(CLI::App& app, Commands& commands, Arguments& arguments, std::string name,
                     std::string what, Command command);
void add_runtime_dir(CLI::App* command, Arguments& arguments);

// Those that change what lies on storage, `gc`, `cp` and `import`; and `completion`.
void add_tending_commands(CLI::App& app, Commands& commands, Arguments& arguments);

}  // namespace ckpt::cli
