// ConfinedFileSystem: the FileSystem of a process whose changes Landlock restricts; it names that
// where it is why the kernel refused one.
//
// Threads, Lifetime: as the FileSystem that it is made of.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "os/file_system.hpp"

namespace ckpt::os {

// ConfinedTo: a directory below which files may change, as it was when the rule was made.
struct ConfinedTo {
  std::string path;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
};

// "/a and /b".
std::string name_all(std::span<const ConfinedTo> directories);

// An error keeps its code and its cause, and gets a longer text: where files may change, or which
// of these directories has been replaced since then. An error of other origin stays as it is.
std::unique_ptr<FileSystem> explain_confinement(std::unique_ptr<FileSystem> disk,
                                                std::vector<ConfinedTo> directories);

}  // namespace ckpt::os
