#include "daemon/confinement.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/landlock.hpp"
#include "os/path.hpp"
#include "os/posix_files.hpp"

namespace ckpt::daemon {

namespace {

bool is_below(const std::string& path, const std::string& directory) {
  return path.starts_with(directory) && path.size() > directory.size() &&
         path[directory.size()] == '/';
}

Result<os::ConfinedTo> look_at(const std::string& directory) {
  const auto there = os::status_of(os::join(directory, "."));
  if (!there)
    return fail(Errc::invalid_argument,
                fmt::format("confine to {}: it must be a directory that is there when ckptd starts",
                            directory),
                there.error().cause());
  const auto above = os::status_of(os::join(directory, "../."));
  if (above && (above->mount != there->mount || above->device != there->device))
    log_warning(
        "{} is a mount point, and must stay mounted while ckptd runs: name the directory above it "
        "in --confine-to, and it may be unmounted and mounted again",
        directory);
  return os::ConfinedTo{directory, there->device, there->inode};
}

// The log's directory is not allowed with it: it may be one of many, as /var/log.
void warn_of_log(const DaemonOptions& options, const std::vector<std::string>& directories) {
  bool is_inside = is_below(options.log_file, options.runtime_dir);
  for (const std::string& directory : directories)
    is_inside = is_inside || is_below(options.log_file, directory);
  const auto there = os::status_of(options.log_file);
  if (!is_inside && there && there->kind == os::EntryKind::file)
    log_warning(
        "the log {} grows without end: ckptd may write it, but not begin another one beside it; "
        "the runtime directory and those of --confine-to are places for it",
        options.log_file);
}

}  // namespace

Result<std::vector<os::ConfinedTo>> confine(const DaemonOptions& options) {
  std::vector<os::ConfinedTo> confined;
  CKPT_TRY(const auto directories, parse_directories(options.confine_to));
  if (directories.empty()) return confined;
  CKPT_ASSERT(!options.runtime_dir.empty());
  std::vector<os::MayChange> places{{os::MayChange::What::files, options.runtime_dir}};
  for (const std::string& directory : directories) {
    CKPT_TRY(os::ConfinedTo named, look_at(directory));
    confined.push_back(std::move(named));
    places.push_back({os::MayChange::What::tree, directory});
  }
  if (!options.log_file.empty()) {
    places.push_back({os::MayChange::What::content, options.log_file});
    warn_of_log(options, directories);
  }
  if (Status restricted = os::restrict_changes(places); !restricted)
    return fail(std::move(restricted).error().context("confine to " + options.confine_to));
  log_info(
      "the kernel lets this daemon change files only below {}, and its own in {} (Landlock, "
      "version {})",
      os::name_all(confined), options.runtime_dir, os::landlock_version());
  CKPT_ASSERT(confined.size() == directories.size());
  return confined;
}

}  // namespace ckpt::daemon
