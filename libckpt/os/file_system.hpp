// FileSystem: the seam to storage; every byte that goes to or comes from a disk passes here.
//
// Three implementations pass one contract (tests/contract/file_system_contract.hpp): the ring with
// O_DIRECT, the thread pool, and the tests' in-memory one, which drops what was not synced.
//
// Threads:   call from one executor; every Task resumes there. Disk work runs elsewhere.
// Lifetime:  spans given to a Task must live until it ends. A failed sync is final: the file is not
//            to be trusted or synced again, a new one must be written (see docs/gotchas.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/task.hpp"

namespace ckpt::os {

class File {
 public:
  virtual ~File() = default;  // Closes what is still open, without an error.

  // All of `bytes` or an error: short operations are resubmitted inside.
  // Reading past the end is corruption: the file is shorter than it must be.
  virtual Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual Task<void> allocate(std::uint64_t bytes) = 0;  // Best effort: unsupported is success.
  virtual Task<void> truncate(std::uint64_t bytes) = 0;
  virtual Task<void> sync_data() = 0;  // fdatasync.
  virtual Task<void> close() = 0;

  // True when the bytes go past the page cache; offsets, lengths and addresses that are not
  // aligned to 4 KiB are then handled inside, more slowly.
  virtual bool is_direct() const = 0;
};

enum class Caching : std::uint8_t { direct, buffered };
enum class RenameMode : std::uint8_t {
  replace,     // rename(2).
  no_replace,  // RENAME_NOREPLACE; an existing target is invalid_argument with cause EEXIST.
  exchange,    // RENAME_EXCHANGE; unsupported where the file system has none (NFS).
};
enum class EntryKind : std::uint8_t { file, directory, symlink, other };

struct Entry {
  std::string name;
  EntryKind kind = EntryKind::other;
};
// Equal ones of the same path are of the same file, and it was not written to in between: but for a
// write so soon after the one before that the file system's clock did not move, and for rot.
struct FileStatus {
  EntryKind kind = EntryKind::other;
  std::uint64_t bytes = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  // Since 1970, by the clock of the file system.
  std::int64_t changed_ns = 0;   // As it, and no program can set it back.
  bool operator==(const FileStatus&) const = default;
};
struct Space {
  std::uint64_t bytes_free = 0;  // For us, without the reserve of root.
  std::uint64_t bytes_total = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a new file (O_EXCL, mode 0600). Errors: invalid_argument with cause EEXIST.
  virtual Task<std::unique_ptr<File>> create(std::string path, Caching caching) = 0;
  // Errors: not_found. Symbolic links are not followed at the last component.
  virtual Task<std::unique_ptr<File>> open_read(std::string path, Caching caching) = 0;

  // Small files in one go: read at most `bytes_max`; write creates `path` anew and syncs it.
  virtual Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) = 0;
  virtual Task<void> write_small(std::string path, std::vector<std::byte> bytes) = 0;
  // Adds to the end of `path`, creating it if need be, and syncs it. Keeps a little room reserved
  // behind the end where the file system can, so that a log still grows on a full disk.
  virtual Task<void> append_small(std::string path, std::vector<std::byte> bytes) = 0;

  virtual Task<void> make_directory(std::string path) = 0;  // 0700; an existing one is success.
  virtual Task<void> rename(std::string from, std::string to, RenameMode mode) = 0;
  virtual Task<void> remove_file(std::string path) = 0;
  virtual Task<void> remove_directory(std::string path) = 0;  // Empty ones only.
  virtual Task<void> sync_directory(std::string path) = 0;
  // Sorted by name; without "." and "..". Errors: not_found.
  virtual Task<std::vector<Entry>> list(std::string path) = 0;
  virtual Task<FileStatus> status(
      std::string path) = 0;  // Does not follow links. Errors: not_found.
  virtual Task<Space> space(std::string path) = 0;
};

}  // namespace ckpt::os
