#include "cli/command_table.hpp"

namespace ckpt::cli {

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

}  // namespace ckpt::cli
