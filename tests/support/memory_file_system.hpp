// MemoryFileSystem: a FileSystem that forgets at a crash exactly what was not synced.
//
// The MemoryDisk outlives crashes and is shared by one front-end per simulated node. A file's bytes
// are durable after sync_data, a name after sync_directory of its directory, and nothing else is:
// no rename orders anything, no close syncs. A failed sync of a file marks what it should have
// saved as lost and clean, so that a second sync succeeds and saves nothing, as Linux does; a
// failed sync of a directory leaves its changes as unsure as they were.
//
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "os/file_system.hpp"

namespace ckpt::test {

enum class Survival : std::uint8_t {
  nothing,     // All unsynced changes are lost.
  everything,  // As after a mere death of the process.
  random,      // Each sector and each change of a directory by itself, later ones before.
};

class MemoryDisk {
 public:
  explicit MemoryDisk(std::uint64_t seed = 1);

  // Power is lost on all nodes, or on the one whose front-ends have this owner.
  void crash(Survival survival, std::optional<std::uint32_t> owner = std::nullopt);

  void set_torn_bytes(std::uint64_t bytes);  // The sector: 4 KiB if nobody says so.
  // Fails the n-th operation from now (0: the next), and with `sticky` all after it.
  struct Fault {
    int error = 5;  // EIO.
    bool is_sticky = false;
    bool is_partial = false;  // A write first leaves the first half of its bytes.
  };
  void fail_at(std::uint64_t operation, Fault fault);
  void clear_faults() { fault_.reset(); }
  // Asked before each operation, as in ("sync_data", "/dir/file"): an errno to fail with, or 0.
  void set_hook(std::function<int(std::string_view verb, const std::string& path)> hook);

  std::uint64_t operations() const { return operations_; }
  // Reads, and openings to read, that fail_at() let fail.
  std::uint64_t read_faults() const { return read_faults_; }
  const std::vector<std::string>& log() const { return log_; }
  void clear_log() { log_.clear(); }

  void set_latency(Duration least, Duration most);  // Of front-ends with a clock.
  void stall_until(Time end) { stalled_until_ = end; }
  void set_capacity(std::optional<std::uint64_t> bytes) { capacity_ = bytes; }
  std::uint64_t used_bytes() const;
  void set_exchange_supported(bool supported) { has_exchange_ = supported; }
  void set_clones_supported(bool supported) { has_clones_ = supported; }
  std::uint64_t bytes_written() const { return bytes_written_; }  // Not those of clones.
  void set_direct(bool is_direct) { is_direct_ = is_direct; }
  // From now on every path lies in a bucket of this server. For questions alone: nothing else is
  // different.
  void set_objects(os::Objects* objects) { objects_ = objects; }
  // The times of files that change from now on. Never called: each change has its own, long ago.
  void set_time(std::chrono::system_clock::time_point now);

  // For tests: around the FileSystem, at once durable, without faults.
  void put(const std::string& path, std::string_view content);  // Makes the directories above.
  void put_link(const std::string& path, const std::string& target);
  void put_directory(const std::string& path);
  void erase(const std::string& path);  // A file or a directory, with all below.
  // In place of the directory, an empty one of the device below; and what was there again. A bind
  // mount is of the same device.
  enum class Mounted : std::uint8_t { device, bind };
  void unmount(const std::string& path, Mounted mounted = Mounted::device);
  void mount(const std::string& path);
  bool exists(const std::string& path) const;
  std::string content(const std::string& path) const;  // Empty when there is no such file.
  // As rot does it: the times of the file stay as they are.
  void flip(const std::string& path, std::uint64_t offset, unsigned bit);
  void resize(const std::string& path, std::uint64_t bytes);
  std::vector<std::string> tree() const;  // Every path, sorted; directories end in "/".

 private:
  friend class MemoryFileSystem;
  friend class MemoryFile;

  struct Inode;
  using Ref = std::shared_ptr<Inode>;
  struct Assignment {  // `name` in `directory` becomes `inode`, or nothing.
    Ref directory;
    std::string name;
    Ref inode;
  };
  struct Change {
    std::uint32_t owner = 0;
    std::vector<Assignment> assignments;  // All or none.
  };
  struct Found {
    Ref directory;
    std::string name;
    Ref inode;  // Null: nothing there. The directory itself when `name` is empty.
  };

  // Counts and logs the operation. Errors: the fault or the hook's.
  Status begin(std::string_view verb, const std::string& path, bool* is_partial = nullptr);
  Result<Found> find(const std::string& path, std::string_view verb) const;
  Result<Ref> find_directory(const std::string& path, std::string_view verb) const;
  Ref make_inode(os::EntryKind kind);
  void stamp(Inode& inode);
  void change(std::uint32_t owner, std::vector<Assignment> assignments);
  Status need_room(std::uint64_t bytes, const std::string& path) const;
  Ref put_parents(const std::string& path, std::string& name);
  Ref must_find(const std::string& path) const;

  Result<Ref> create(std::uint32_t owner, const std::string& path);
  Status write(Inode& inode, const std::string& path, std::uint64_t offset,
               std::span<const std::byte> bytes, std::uint32_t owner);
  void put_bytes(Inode& inode, std::uint64_t offset, std::span<const std::byte> bytes);
  Status clone(Inode& inode, const std::string& path, const os::CloneRange& range,
               const os::CloneSource& source);
  static os::FileStatus status_of(const Inode& inode);
  Status sync(Inode& inode, const std::string& path);
  Status append(std::uint32_t owner, const std::string& path, std::span<const std::byte> bytes,
                os::Syncing syncing);
  Status rename(std::uint32_t owner, const std::string& from, const std::string& to,
                os::RenameMode mode);
  Status remove(std::uint32_t owner, const std::string& path, bool is_directory);
  Status sync_directory(const std::string& path);
  void lose_unsynced(Inode& inode, Survival survival);

  Random random_;
  Ref root_;
  std::vector<std::weak_ptr<Inode>> inodes_;
  std::vector<Change> pending_;  // Directory changes that no sync has covered, in order.
  std::uint64_t operations_ = 0, torn_bytes_ = 4096;
  std::uint64_t inodes_made_ = 0;
  bool has_clock_ = false;
  std::int64_t now_ns_ = 0;
  std::uint64_t read_faults_ = 0;
  std::optional<std::uint64_t> fault_at_;
  std::optional<Fault> fault_;
  std::function<int(std::string_view, const std::string&)> hook_;
  std::vector<std::string> log_;
  Duration latency_least_{0};
  Duration latency_most_{0};
  Time stalled_until_{};
  std::optional<std::uint64_t> capacity_;
  bool has_exchange_ = true;
  bool has_clones_ = true;
  std::uint64_t bytes_written_ = 0;
  bool is_direct_ = false;
  os::Objects* objects_ = nullptr;
  std::map<std::string, Ref> unmounted_;  // By path.
};

// One node's view. Without a clock, operations end at once; with one, each takes its latency, and
// has its effect at the start or at the end of it.
class MemoryFileSystem final : public os::FileSystem {
 public:
  explicit MemoryFileSystem(MemoryDisk& disk, Clock* clock = nullptr, std::uint32_t owner = 0)
      : disk_(disk), clock_(clock), owner_(owner) {}

  // The storage hangs for this node alone.
  void stall_until(Time end) { stalled_until_ = end; }

  Task<std::unique_ptr<os::File>> create(std::string path, os::Caching caching) override;
  Task<std::unique_ptr<os::File>> open_read(std::string path, os::Caching caching) override;
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override;
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override;
  Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                          os::Syncing syncing) override;
  Task<void> make_directory(std::string path) override;
  Task<void> rename(std::string from, std::string to, os::RenameMode mode) override;
  Task<void> remove_file(std::string path) override;
  Task<void> remove_directory(std::string path) override;
  Task<void> sync_directory(std::string path) override;
  Task<std::vector<os::DirectoryEntry>> list(std::string path) override;
  Task<os::FileStatus> status(std::string path) override;
  Task<os::Space> space(std::string path) override;
  os::Objects* objects(std::string_view) override { return disk_.objects_; }

 private:
  friend class MemoryFile;
  template <class T>
  Task<T> perform(std::function<Result<T>()> work);
  Task<void> pause();

  MemoryDisk& disk_;
  Clock* clock_;
  std::uint32_t owner_;
  Time stalled_until_{};
};

}  // namespace ckpt::test
