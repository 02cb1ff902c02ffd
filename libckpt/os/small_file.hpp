// SmallFile: files that are read and replaced as a whole, within a size limit.
//
// The paths come from people and from the environment. Only regular files (and links to them) are
// opened: a FIFO would block its reader, and a device may never end.
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
// Reads the whole file into `room` and returns its size; `room` must be larger by at least one
// byte. `path` is for errors. Errors: io, exhausted (the file is longer).
Result<std::size_t> read_whole(const Fd& fd, std::span<std::byte> room, const std::string& path);
// Opens and reads. Errors: those of both; exhausted if it is longer than `bytes_max`.
Result<std::string> read_file(const std::string& path, std::size_t bytes_max);

// Atomic: a reader sees the old text or the new one.
Status replace_file(const std::string& path, const std::string& text);
void remove_file(const std::string& path);  // A missing one is fine.

std::uint64_t file_bytes(const std::string& path);  // 0 if it does not exist.
// The last non-empty line after the first `from` bytes, if any: usually the last message of a
// program that ended.
std::string last_line(const std::string& path, std::uint64_t from = 0);

}  // namespace ckpt::os
