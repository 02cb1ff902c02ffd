// SmallFile: files that are read whole into memory, within a limit, and replaced whole.
//
// Their paths come from people and from the environment: what is no regular file is refused, since
// a FIFO would hold its reader and a device may never end. A link to a regular file is one.
//
// Threads: any.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "os/fd.hpp"

namespace ckpt::os {

// Errors: not_found, invalid_argument (a directory, or no regular file), io, exhausted.
Result<Fd> open_regular_file(const std::string& path);
// How many bytes it has, all of them in `room`, which is larger by at least one; `path` is for
// errors. Errors: io, exhausted (it is longer).
Result<std::size_t> read_whole(const Fd& fd, std::span<std::byte> room, const std::string& path);
// Both. Errors: those of both; exhausted where it is longer than `bytes_max`.
Result<std::string> read_file(const std::string& path, std::size_t bytes_max);

// A reader sees the old one or the new one.
Status replace_file(const std::string& path, const std::string& text);
void remove_file(const std::string& path);  // A missing one is fine.

std::uint64_t file_bytes(const std::string& path);  // 0: there is none.
// The last line that is not empty, or nothing, of what follows the first `from` bytes: what a
// program that ended has said.
std::string last_line(const std::string& path, std::uint64_t from = 0);

}  // namespace ckpt::os
