// CatalogCache: descriptions of manifests that were read, so that an unchanged one is not read
// again.
//
// An entry is valid while the manifest's file has the same status as when it was read: inode, size
// and times. The times of files are coarse, and a second write might leave the same status. So a
// manifest that was written less than `settled_after` before it was read is not kept. Only
// successful reads are kept; damage is checked anew each time.
//
// A trainer never gets bytes by it: every reader of a shard reads the manifest itself.
//
// Threads: one.  Memory: `bytes_max`; the oldest steps leave first.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "storage/checkpoint.hpp"

namespace ckpt::storage {

// ListedFile: a file that the manifest names.
struct ListedFile {
  std::string name;
  std::uint64_t bytes = 0;
};
// The parts of a manifest that the catalog needs.
struct Described {
  Checkpoint checkpoint;
  std::vector<ListedFile> files;
};

class CatalogCache {
 public:
  using WallTime = std::chrono::system_clock::time_point;
  // The coarsest file times in use (FAT) have a resolution of two seconds.
  static constexpr auto settled_after = std::chrono::seconds(2);
  // Enough for about 900 checkpoints of 512 ranks.
  static constexpr std::uint64_t bytes_max_default = 64u << 20;

  explicit CatalogCache(std::uint64_t bytes_max = bytes_max_default) : bytes_max_(bytes_max) {}

  // Returns null if the manifest must be read. `name` is that of the step's directory.
  std::shared_ptr<const Described> find(const std::string& name, const os::FileStatus& now) const;
  // `manifest` is its status, equal before and after reading; `began` is the time before.
  void keep(const std::string& name, const os::FileStatus& manifest, WallTime began,
            std::shared_ptr<const Described> described);
  void keep_only(const std::set<std::string>& names);

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    os::FileStatus manifest;
    std::shared_ptr<const Described> described;
  };
  using Entries = std::map<std::string, Entry>;  // By name, so that the oldest step is first.
  Entries::iterator drop(Entries::iterator entry);

  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  Entries entries_;
};

}  // namespace ckpt::storage
