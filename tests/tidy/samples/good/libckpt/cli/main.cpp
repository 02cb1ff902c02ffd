#include <CLI/CLI.hpp>

int main() {
  CLI::App app;
  app.add_subcommand("status", "What is held where")->add_flag("--json");
  return static_cast<int>(std::get<0>(app.get_option("--json")->results().size()));
}
