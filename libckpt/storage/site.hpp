// Site: a job's checkpoint directory, with everything needed to work in it.
//
// It is copied freely: it borrows the FileSystem, the Clock and the Compute, which outlive every
// Task here. Manifests are parsed and built on the Compute, since a large one takes seconds.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/compute.hpp"
#include "os/file_system.hpp"
#include "os/path.hpp"

namespace ckpt::storage {

class Site {
 public:
  // Without a Compute, as in tools, that work runs in place.
  Site(os::FileSystem& files, Clock& clock, std::string directory, Compute* compute = nullptr)
      : files_(&files), clock_(&clock), compute_(compute), directory_(std::move(directory)) {}

  os::FileSystem& files() const { return *files_; }
  Clock& clock() const { return *clock_; }
  Compute* compute() const { return compute_; }
  const std::string& directory() const { return directory_; }  // As the user wrote it.

  // Null: the directory is on a disk. Else it is in a bucket.
  os::Objects* objects() const { return files_->objects(directory_); }

  // No symbolic link is followed below the directory. `at(".")` is the directory itself.
  std::string at(std::string_view name) const {
    return name == "." ? os::join(directory_, name) : os::beneath(directory_, name);
  }

 private:
  os::FileSystem* files_;
  Clock* clock_;
  Compute* compute_;
  std::string directory_;
};

}  // namespace ckpt::storage
