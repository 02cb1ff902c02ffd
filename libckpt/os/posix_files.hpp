// PosixFiles: the blocking calls of a FileSystem, one function each, for the disk threads.
//
// Every path is resolved component by component to the right of its mark (os/path.hpp), each one
// opened with O_NOFOLLOW, so that a link planted below the job's directory is refused and not
// followed. Errors: os/storage_error.hpp says which errno becomes which Errc.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "os/fd.hpp"
#include "os/file_system.hpp"

namespace ckpt::os {

// OpenFile: one inode behind up to two descriptors. Aligned ranges go through `direct` past the
// page cache; the unaligned rest of a file goes through `buffered`. The kernel keeps the two
// coherent, and no page is ever touched by both: what is aligned and what is not never overlap.
struct OpenFile {
  std::string path;  // For errors.
  Fd buffered;
  Fd direct;  // Empty: O_DIRECT was refused, or not asked for.
  std::uint64_t device = 0;
  bool drop_cache = false;  // Caching::direct was asked for: what is cached is dropped behind.
};

Result<std::shared_ptr<OpenFile>> create_file(const std::string& path, Caching caching);
Result<std::shared_ptr<OpenFile>> open_file(const std::string& path, Caching caching);

// All bytes, through one descriptor; interrupted and short calls are continued.
Status write_all(int fd, std::uint64_t offset, std::span<const std::byte> bytes,
                 const std::string& path);
Status read_all(int fd, std::uint64_t offset, std::span<std::byte> bytes, const std::string& path);
Unexpected file_too_short(const std::string& path, std::uint64_t offset, std::uint64_t missing);

Status allocate_file(const OpenFile& file, std::uint64_t bytes);
Status truncate_file(const OpenFile& file, std::uint64_t bytes);
Status sync_file_data(const OpenFile& file);
// Drops what is cached and clean; a wish.
void drop_cache(const OpenFile& file);
// The error that close(2) reports, which on NFS is the last chance to hear of a lost write.
Status close_file(OpenFile& file);

Result<std::vector<std::byte>> read_small_file(const std::string& path, std::uint64_t bytes_max);
Status write_small_file(const std::string& path, std::span<const std::byte> bytes);
Status append_small_file(const std::string& path, std::span<const std::byte> bytes);
Status make_directory_at(const std::string& path);
Status rename_path(const std::string& from, const std::string& to, RenameMode mode);
Status remove_file_at(const std::string& path);
Status remove_directory_at(const std::string& path);
Status sync_directory_at(const std::string& path);
Result<std::vector<Entry>> list_directory(const std::string& path);
Result<FileStatus> status_of(const std::string& path);
Result<Space> space_of(const std::string& path);

// O_DIRECT was refused: says so, once per device in this process.
void say_direct_refused(const OpenFile& file, const char* where, int error);

}  // namespace ckpt::os
