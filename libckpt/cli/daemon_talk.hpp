// DaemonTalk: sends one question to the daemon of a runtime directory, and returns its answer.
//
// It never starts a daemon: asking for the state must not change it.
#pragma once

#include <ckpt/result.hpp>
#include <string>

#include "cli/command.hpp"
#include "cli/workplace.hpp"
#include "os/local_connection.hpp"
#include "os/runtime_directory.hpp"
#include "wire/control_message.hpp"

namespace ckpt::cli {

// A healthy daemon answers in milliseconds.
inline constexpr Duration answer_time = std::chrono::seconds(15);

// Where the daemon of this directory runs; empty: this user's. Errors: not_found (nowhere; says
// what to do), invalid_argument.
Result<os::RuntimeDirectory> daemon_directory(const std::string& runtime_dir);
// A connection that has exchanged hellos. Errors: not_found (no daemon runs; says what to do),
// unavailable (it does not answer), version_mismatch.
Task<os::LocalConnection> connect_daemon(Clock& clock, os::RuntimeDirectory directory);

// Errors: those of the two above, and the daemon's own answer.
Result<wire::control::Answer> ask_daemon(const std::string& runtime_dir,
                                         wire::control::Message question, Duration time);

// Ends the daemon, and waits until its process is gone. `deadline` limits the flush. The answer
// lists what each job then had on storage (docs/protocol.md, "Stop"). If its result is an error, it
// lists what could not be flushed, and the daemon keeps running. Errors: as above.
Result<wire::control::Answer> stop_daemon(const os::RuntimeDirectory& directory, Duration deadline,
                                          bool flush);

// Errors: corruption (not a daemon's answer).
Result<Json> parse_answer(const wire::control::Answer& answer);

}  // namespace ckpt::cli
