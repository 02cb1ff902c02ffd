// CatalogCache: what manifests said when they were last read, so that one that did not change since
// is not read again.
//
// An entry counts while the manifest's file has the status that it had when it was read: the same
// inode, size and times. A manifest that was written less than `settled_after` before it was read
// is not kept, since the times of files are coarse: another write might leave the same status. Only
// what could be read and parsed is kept; damage is looked at anew each time.
//
// What is served to a trainer is never taken from here: who reads a shard reads its manifest.
//
// Threads: one.  Memory: `bytes_max`; the oldest steps leave first.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "storage/catalog.hpp"

namespace ckpt::storage {

struct MemberFile {
  std::string name;
  std::uint64_t bytes = 0;
};
// What the catalog needs of a manifest.
struct Described {
  Checkpoint checkpoint;
  std::vector<MemberFile> files;
};

class CatalogCache {
 public:
  using WallTime = std::chrono::system_clock::time_point;
  // The coarsest times of files that are in use (FAT) have two seconds.
  static constexpr auto settled_after = std::chrono::seconds(2);
  // About 1,500 checkpoints of 512 ranks.
  static constexpr std::uint64_t bytes_max_default = 64u << 20;

  explicit CatalogCache(std::uint64_t bytes_max = bytes_max_default) : bytes_max_(bytes_max) {}

  // Null: it has to be read. `name` is that of the step's directory.
  std::shared_ptr<const Described> find(const std::string& name, const os::FileStatus& now) const;
  // `manifest` was its status before it was read and after; `began` is the time before.
  void keep(const std::string& name, const os::FileStatus& manifest, WallTime began,
            std::shared_ptr<const Described> described);
  void keep_only(const std::set<std::string>& names);

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    os::FileStatus manifest;
    std::shared_ptr<const Described> described;
  };
  using Entries = std::map<std::string, Entry>;  // By name: the oldest step is the first.
  Entries::iterator drop(Entries::iterator entry);

  std::uint64_t bytes_max_;
  std::uint64_t bytes_ = 0;
  Entries entries_;
};

}  // namespace ckpt::storage
