// ExportLock: an export's claim on the directory that it writes to, so that the next one knows
// whether what lies there is being written.
//
//   alone (exclusive) --share--> shared with other exports
//   not alone         --share--> shared, once nobody is alone
//
// It is a lock of the kernel (flock) on the directory, which ends with the process. Where a file
// system has no such locks, nobody is alone. On network file systems it may hold on one machine
// only: exports on others are not seen, so being alone is not enough to remove what looks old.
#pragma once

#include <string>

#include "os/fd.hpp"

namespace ckpt::cli {

class ExportLock {
 public:
  explicit ExportLock(const std::string& directory);

  // No other export on this machine holds the lock, and none gets it before share().
  bool is_alone() const { return is_alone_; }
  // Waits some seconds at most for one that is alone, and then goes on without the lock.
  void share();

 private:
  os::Fd directory_;
  bool is_alone_ = false;
};

}  // namespace ckpt::cli
