#include "cli/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace ckpt::cli {

namespace {

// Those that are written with dashes, as "--json"; of each, whether a value follows.
struct Flag {
  std::string name;
  bool takes_value = false;
};

struct CommandWords {
  std::string name;
  std::string description;
  std::vector<Flag> flags;
};

std::vector<CommandWords> words_of(const CLI::App& app) {
  std::vector<CommandWords> all;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandWords& words =
        all.emplace_back(CommandWords{command->get_name(), command->get_description(), {}});
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames())
        words.flags.push_back({"--" + name, option->get_type_size() != 0});
    }
  }
  return all;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// Paths are completed wherever no option stands; after an option with a value, too.
std::string bash_script(const std::vector<CommandWords>& all) {
  std::vector<std::string> names;
  std::string cases;
  for (const CommandWords& command : all) {
    std::vector<std::string> flags;
    for (const Flag& flag : command.flags) flags.push_back(flag.name);
    names.push_back(command.name);
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name, joined(flags));
  }
  return fmt::format(
      "# ckpt completion bash: source it, or put it into\n"
      "# ${{XDG_DATA_HOME:-~/.local/share}}/bash-completion/completions/ckpt\n"
      "_ckpt() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  [[ $current == -* ]] || return  # Paths, as the shell completes them.\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "{}"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -o bashdefault -F _ckpt ckpt\n",
      joined(names), cases);
}

// Inside of single quotes.
std::string quoted(std::string text) {
  std::string out;
  for (const char letter : text)
    out += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return out;
}

std::string zsh_script(const std::vector<CommandWords>& all) {
  std::string names, cases;
  for (const CommandWords& command : all) {
    std::string description = command.description;
    std::ranges::replace(description, ':', ' ');
    names += fmt::format("    '{}:{}'\n", command.name, quoted(description));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const Flag& flag : command.flags)
      cases += fmt::format(" '{}{}'", flag.name, flag.takes_value ? ":value:_files" : "");
    cases += " '*:path:_files' ;;\n";
  }
  return fmt::format(
      "#compdef ckpt\n"
      "# ckpt completion zsh: source it behind compinit, or put it as _ckpt into a directory of "
      "$fpath.\n"
      "_ckpt() {{\n"
      "  local -a commands\n"
      "  commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n"
      "{}"
      "  esac\n"
      "}}\n"
      "if [[ $funcstack[1] == _ckpt ]]; then\n"
      "  _ckpt \"$@\"\n"
      "else\n"
      "  compdef _ckpt ckpt\n"
      "fi\n",
      names, cases);
}

}  // namespace

Result<std::string> completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(words_of(app));
  if (shell == "zsh") return zsh_script(words_of(app));
  return fail(Errc::invalid_argument,
              fmt::format("completion for \"{}\": it is bash or zsh", shell));
}

}  // namespace ckpt::cli
