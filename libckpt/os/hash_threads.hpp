// HashThreads: a few low-priority threads, the Compute of a daemon and of an embedded engine.
//
// Lifetime: as for Compute; the destructor finishes everything that was queued.
#pragma once

#include "base/compute.hpp"
#include "os/disk_threads.hpp"

namespace ckpt::os {

// One hashes faster than a disk or a network brings bytes (docs/performance.md); the second keeps
// a long manifest from holding up everything else.
inline constexpr std::size_t hash_thread_count = 2;

class HashThreads final : public Compute {
 public:
  HashThreads() : threads_(hash_thread_count, DiskPriority::background, "ckptd-hash") {}
  Task<void> run(std::function<void()> work) override;

 private:
  DiskThreads threads_;
};

}  // namespace ckpt::os
