// FileSystem: the seam to storage; every byte that goes to or comes from a disk passes here.
//
// Three implementations pass one contract (tests/contract/file_system_contract.hpp): the ring with
// O_DIRECT, the thread pool, and the tests' in-memory one, which drops what was not synced. Buckets
// (bucket/) are a fourth: they can do less, and `objects` says what they have instead.
//
// Threads:   call from one executor; every Task resumes there. Disk work runs elsewhere.
// Lifetime: spans given to a Task must live until it ends. A failed sync is final: never trust or
//           sync that file again, write a new one (see docs/gotchas.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.hpp"
#include "os/objects.hpp"

namespace ckpt::os {

enum class EntryKind : std::uint8_t { file, directory, symlink, other };
// Two equal statuses of one path mean the same file, unmodified in between. Exceptions: a second
// write within one tick of the file system's clock, and bit rot.
struct FileStatus {
  EntryKind kind = EntryKind::other;
  std::uint64_t bytes = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  // Since 1970, by the clock of the file system.
  std::int64_t changed_ns = 0;   // The same clock; no program can set it back.
  // For a directory: the mount that it is seen through, a new one at each mounting. 0: the
  // system does not report it (before Linux 5.8).
  std::uint64_t mount = 0;
  bool operator==(const FileStatus&) const = default;
};

// CloneSource: a file to share bytes with, as it was when its bytes were known.
struct CloneSource {
  std::string path;
  FileStatus expected;
};
struct CloneRange {
  std::uint64_t from = 0;  // Its begin in the source.
  std::uint64_t to = 0;    // Its begin in the file that gets it.
  std::uint64_t bytes = 0;
};

class File {
 public:
  virtual ~File() = default;  // Closes what is still open, without an error.

  // Transfers all of `bytes` or fails; short operations are resubmitted inside. Reading past the
  // end is corruption: the file is shorter than it must be.
  virtual Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  // The same for bytes that stay as they are until the file is closed or destroyed. A bucket sends
  // several together, so that this may return before they are sent.
  virtual Task<void> write_lasting_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    return write_at(offset, bytes);
  }
  virtual Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual Task<void> allocate(std::uint64_t bytes) = 0;  // Best effort: unsupported is success.
  virtual Task<void> truncate(std::uint64_t bytes) = 0;
  // Takes the place of a write of the source's bytes: both files then share them on the disk
  // (FICLONERANGE), and nothing is read. After an error, write the range: it may have any bytes.
  // Errors: unsupported (this file system, two file systems, or such a range), not_found (the
  // source is gone, or is not the expected file any more), and those of a write.
  virtual Task<void> clone_at(CloneRange range, CloneSource source) {
    (void)range;
    co_return fail(Errc::unsupported, "share bytes of " + source.path + ": not in a bucket");
  }
  virtual Task<void> sync_data() = 0;  // fdatasync.
  virtual Task<void> close() = 0;

  // True when the bytes bypass the page cache. Offsets, lengths and addresses that are not aligned
  // to 4 KiB are then handled inside, more slowly.
  virtual bool is_direct() const = 0;
};

enum class Caching : std::uint8_t { direct, buffered };
enum class RenameMode : std::uint8_t {
  replace,     // rename(2).
  no_replace,  // RENAME_NOREPLACE; an existing target is invalid_argument with cause EEXIST.
  exchange,    // RENAME_EXCHANGE; unsupported where the file system has none (NFS).
};
enum class Syncing : std::uint8_t {
  now,
  later,  // By the next sync of the file, or when the system likes.
};
struct DirectoryEntry {
  std::string name;
  EntryKind kind = EntryKind::other;
};
struct Space {
  std::uint64_t bytes_free = 0;  // Free for us, without root's reserve.
  std::uint64_t bytes_total = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a new file (O_EXCL, mode 0600). Errors: invalid_argument with cause EEXIST.
  virtual Task<std::unique_ptr<File>> create(std::string path, Caching caching) = 0;
  // Errors: not_found. Symbolic links are not followed at the last component.
  virtual Task<std::unique_ptr<File>> open_read(std::string path, Caching caching) = 0;

  // Small files in one call: read returns at most `bytes_max`; write creates `path` anew and syncs
  // it.
  virtual Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) = 0;
  virtual Task<void> write_small(std::string path, std::vector<std::byte> bytes) = 0;
  // Appends to `path`, creating it if needed. Reserves a little room behind the end where the file
  // system can, so that a log still grows on a full disk.
  virtual Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                                  Syncing syncing) = 0;

  virtual Task<void> make_directory(std::string path) = 0;  // 0700; an existing one is success.
  virtual Task<void> rename(std::string from, std::string to, RenameMode mode) = 0;
  virtual Task<void> remove_file(std::string path) = 0;
  virtual Task<void> remove_directory(std::string path) = 0;  // Empty ones only.
  virtual Task<void> sync_directory(std::string path) = 0;
  // Sorted by name; without "." and "..". Errors: not_found.
  virtual Task<std::vector<DirectoryEntry>> list(std::string path) = 0;
  virtual Task<FileStatus> status(
      std::string path) = 0;  // Does not follow links. Errors: not_found.
  virtual Task<Space> space(std::string path) = 0;

  // Null: the path lies on a disk. Else there is no rename at it, and this instead.
  virtual Objects* objects(std::string_view path) {
    (void)path;
    return nullptr;
  }
};

}  // namespace ckpt::os
