#include "daemon/ready_file.hpp"

#include <limits>
#include <nlohmann/json.hpp>

namespace ckpt::daemon {

std::string to_json(const Ready& ready) {
  const nlohmann::ordered_json json = {{"pid", ready.process.pid},
                                       {"start_ticks", ready.process.start_ticks},
                                       {"version", ready.version},
                                       {"socket", ready.socket},
                                       {"memory_budget", ready.memory_budget}};
  return json.dump() + "\n";
}

Result<Ready> parse_ready(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto corrupt = [](const char* what) {
    return fail(Errc::corruption, std::string("read the ready-file: ") + what);
  };
  if (!json.is_object()) return corrupt("it is no JSON object");
  for (const char* name : {"pid", "start_ticks"}) {
    if (!json.contains(name) || !json[name].is_number_unsigned())
      return corrupt("a number is missing");
  }
  for (const char* name : {"version", "socket"}) {
    if (!json.contains(name) || !json[name].is_string()) return corrupt("a text is missing");
  }
  const auto pid = json["pid"].get<std::uint64_t>();
  if (pid == 0 || pid > static_cast<std::uint64_t>(std::numeric_limits<pid_t>::max()))
    return corrupt("its pid is none");
  Ready ready;
  ready.process.pid = static_cast<pid_t>(pid);
  ready.process.start_ticks = json["start_ticks"].get<std::uint64_t>();
  ready.version = json["version"].get<std::string>();
  ready.socket = json["socket"].get<std::string>();
  if (json.contains("memory_budget") && json["memory_budget"].is_number_unsigned())
    ready.memory_budget = json["memory_budget"].get<std::uint64_t>();
  return ready;
}

}  // namespace ckpt::daemon
