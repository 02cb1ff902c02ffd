#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/daemon_talk.hpp"

namespace ckpt::cli {

Result<Outcome> stop(const std::string& runtime_dir, std::chrono::milliseconds deadline,
                     bool flush) {
  Outcome outcome;
  auto directory = os::RuntimeDirectory::find(runtime_dir);
  Status stopped;
  if (directory) {
    stopped = stop_daemon(*directory, deadline, flush);
  } else {
    stopped = fail(std::move(directory).error());
  }
  outcome.json["stopped"] = stopped.has_value();
  if (stopped) {
    outcome.json["flushed"] = flush;
    outcome.text = flush ? "The daemon has flushed what it held, and ended.\n"
                         : "The daemon has ended, without a flush.\n";
    return outcome;
  }
  // What was asked for is the case already.
  if (stopped.error().code() != Errc::not_found) return fail(std::move(stopped).error());
  const std::string where = directory ? directory->path() : runtime_dir;
  outcome.json["reason"] = "no daemon runs";
  outcome.text = fmt::format("No daemon runs{}.\n", where.empty() ? "" : " in " + where);
  return outcome;
}

}  // namespace ckpt::cli
