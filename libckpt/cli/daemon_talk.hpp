// DaemonTalk: one question to the daemon of a runtime directory, and its answer.
//
// It never starts a daemon: who asks how things are must not change them.
#pragma once

#include <ckpt/result.hpp>
#include <string>

#include "cli/command.hpp"
#include "cli/workplace.hpp"
#include "os/runtime_directory.hpp"
#include "wire/control_message.hpp"

namespace ckpt::cli {

// A daemon that is healthy answers in milliseconds.
inline constexpr Duration answer_time = std::chrono::seconds(15);

// Errors: not_found (no daemon runs, with what to do), unavailable (it does not answer),
// version_mismatch, and what the daemon itself answered.
Result<wire::control::Answer> ask_daemon(const std::string& runtime_dir,
                                         wire::control::Message question, Duration time);

// Ends the daemon, and waits until its process is gone. `deadline` is that of the flush. What each
// job then had on storage (docs/protocol.md, "Stop"). An answer whose result is an error tells what
// could not be flushed: the daemon goes on then. Errors: as above.
Result<wire::control::Answer> stop_daemon(const os::RuntimeDirectory& directory, Duration deadline,
                                          bool flush);

// Errors: corruption (it is not what a daemon says).
Result<Json> parse_answer(const wire::control::Answer& answer);

}  // namespace ckpt::cli
