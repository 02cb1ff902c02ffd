// Landlock: the kernel lets this process change files in named places alone, from now on and for
// good (docs/decisions/0055).
//
// It refuses to write, cut, make, rename and remove anywhere else with EACCES, to root too. It does
// not restrict reading, files that are open already, or anything that is no file. A place is an
// inode, and not its path: mounts below it may come and go, but the directory itself must stay.
//
// Threads: it holds for the calling thread, and for those that this one starts afterwards.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt::os {

// From 1; 0: it has none, or it is switched off.
int landlock_version();

// The first version that lets a file go from one directory to another: of Linux 5.19.
inline constexpr int landlock_version_wanted = 2;

struct MayChange {
  enum class What : std::uint8_t {
    tree,     // All below it: files, sockets and directories.
    files,    // The same, but no directory is made or removed.
    content,  // One file that exists: it is written, and nothing else.
  };
  What what = What::tree;
  std::string path;  // Followed through links.
};

// Afterwards no program that this process starts gains rights by it, either (no_new_privs). The
// kernel has `version`: before 3, only cutting a file that is not open stays free everywhere.
// Errors: unsupported (the version is not good enough), io (a place that cannot be opened; or the
// kernel refuses). After an error nothing is restricted.
Status restrict_changes(std::span<const MayChange> places, int version = landlock_version());

}  // namespace ckpt::os
