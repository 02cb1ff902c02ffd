// Site: where a job's checkpoints lie, and what it takes to work there.
//
// Copied freely: it borrows the FileSystem and the Clock, which outlive every Task here.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "os/file_system.hpp"
#include "os/path.hpp"

namespace ckpt::storage {

class Site {
 public:
  Site(os::FileSystem& files, Clock& clock, std::string directory)
      : files_(&files), clock_(&clock), directory_(std::move(directory)) {}

  os::FileSystem& files() const { return *files_; }
  Clock& clock() const { return *clock_; }
  const std::string& directory() const { return directory_; }  // As the user gave it.

  // Below the directory no symbolic link is followed. `at(".")` is the directory itself.
  std::string at(std::string_view name) const { return os::beneath(directory_, name); }

 private:
  os::FileSystem* files_;
  Clock* clock_;
  std::string directory_;
};

}  // namespace ckpt::storage
