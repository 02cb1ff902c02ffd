// PosixFiles: the blocking calls of a FileSystem, one function each, for the disk threads.
//
// Right of its mark, every path is resolved component by component (os/path.hpp), each opened with
// O_NOFOLLOW. A link planted below the job's directory is therefore refused. os/storage_error.hpp
// maps errno to Errc.
//
// Threads: any.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "os/fd.hpp"
#include "os/file_system.hpp"

namespace ckpt::os {

// OpenFile: one inode behind up to two descriptors. Aligned ranges use `direct`, past the page
// cache; the unaligned rest uses `buffered`. Aligned and unaligned ranges never overlap, so no page
// is touched through both, and the kernel keeps the two coherent.
struct OpenFile {
  std::string path;  // For errors.
  Fd buffered;
  Fd direct;  // Empty: O_DIRECT was refused, or not asked for.
  std::uint64_t device = 0;
  bool drop_cache = false;  // Caching::direct was asked for: drop cached pages afterwards.
};

Result<std::shared_ptr<OpenFile>> create_file(const std::string& path, Caching caching);
Result<std::shared_ptr<OpenFile>> open_file(const std::string& path, Caching caching);

// Transfers all bytes through one descriptor; continues after interrupted and short calls.
Status write_all(int fd, std::uint64_t offset, std::span<const std::byte> bytes,
                 const std::string& path);
Status read_all(int fd, std::uint64_t offset, std::span<std::byte> bytes, const std::string& path);
Unexpected file_too_short(const std::string& path, std::uint64_t offset, std::uint64_t missing);

Status allocate_file(const OpenFile& file, std::uint64_t bytes);
Status truncate_file(const OpenFile& file, std::uint64_t bytes);
Status sync_file_data(const OpenFile& file);
// Drops cached clean pages; best effort.
void drop_cache(const OpenFile& file);
// Returns the error of close(2), which on NFS is the last chance to learn of a lost write.
Status close_file(OpenFile& file);

Result<std::vector<std::byte>> read_small_file(const std::string& path, std::uint64_t bytes_max);
Status write_small_file(const std::string& path, std::span<const std::byte> bytes);
Status append_small_file(const std::string& path, std::span<const std::byte> bytes,
                         Syncing syncing);
Status make_directory_at(const std::string& path);
Status rename_path(const std::string& from, const std::string& to, RenameMode mode);
Status remove_file_at(const std::string& path);
Status remove_directory_at(const std::string& path);
Status sync_directory_at(const std::string& path);
Result<std::vector<DirectoryEntry>> list_directory(const std::string& path);
Result<FileStatus> status_of(const std::string& path);
FileStatus to_file_status(const struct ::stat& status);  // Without the mount.
Result<Space> space_of(const std::string& path);

// Logs that O_DIRECT was refused, once per device in this process.
void log_direct_refused(const OpenFile& file, const char* where, int error);

}  // namespace ckpt::os
