#include "client/daemon_budget.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "client/option_text.hpp"

namespace ckpt::client {

std::string other_budget(const Options& options, std::string_view ready) {
  if (options.memory_budget == 0) return {};
  const auto json = nlohmann::json::parse(ready, nullptr, false);
  if (!json.is_object()) return {};
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto found = json.find(name);
    return found != json.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  const std::uint64_t running = number("memory_budget");
  if (running == 0 || running == options.memory_budget) return {};
  return fmt::format(
      "option memory_budget = {} is without effect: the daemon that runs, pid {}, has {}, and only "
      "the trainer that starts a daemon sets it; `ckpt stop` ends this one",
      show_bytes(options.memory_budget), number("pid"), show_bytes(running));
}

}  // namespace ckpt::client
