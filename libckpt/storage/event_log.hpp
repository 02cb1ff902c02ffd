// EventLog: .libckpt/log.jsonl, one line for every save and every delete, in the order they
// happened.
//
// {"time":"2026-11-21T09:00:00.123Z","process":4711,"operation":"delete","path":"step-000000123",
//  "step":123,"timeline":2,"bytes":1048576,"reason":"only 3 are kept"}
//
// In a bucket, each line is an object of its own: .libckpt/log/<milliseconds>-<random>.json. The
// milliseconds are those since 1970.
//
// The line of a delete is synced before any file is deleted, and those before it with it. That of a
// save may be lost with the power: the checkpoint itself says what it would.
#pragma once

#include <cstdint>
#include <string>

#include "format/shard_record.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct Event {
  std::string operation;  // "save", "delete", "discard", "copy".
  std::string path;       // Relative to the job's directory.
  format::StepId at;
  std::uint64_t bytes = 0;
  std::string reason;
};

std::string render(const Event& event, std::chrono::system_clock::time_point time);

// Appends the line. A full disk is not an error, since nothing could be deleted otherwise: the
// line then goes to the process's own log. Errors: io, not_found (no such directory).
Task<void> record_event(Site site, Event event, os::Syncing syncing = os::Syncing::now);

}  // namespace ckpt::storage
