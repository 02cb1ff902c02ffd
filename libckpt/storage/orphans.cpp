#include "storage/orphans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// Returns true if it was published once, whole or damaged.
bool was_published(const Rejected& rejected) {
  return rejected.is_of_other_run || is_damage(rejected) || is_unreadable(rejected);
}

}  // namespace

std::string describe_orphans(const Catalog& catalog, std::optional<format::RunId> run) {
  if (run && !catalog.checkpoints.empty()) return {};
  std::vector<std::string> names;
  std::string job;
  for (const Checkpoint& checkpoint : catalog.checkpoints) {
    names.push_back(checkpoint.name);
    job = checkpoint.job;
  }
  for (const Rejected& rejected : catalog.rejected) {
    // With a marker, a damaged one may be of this run, which the catalog reports.
    if (run ? rejected.is_of_other_run : was_published(rejected)) names.push_back(rejected.name);
  }
  if (names.empty()) return {};
  const auto [first, last] = std::minmax_element(names.begin(), names.end());
  std::string text = names.size() == 1
                         ? fmt::format("1 checkpoint ({}", *first)
                         : fmt::format("{} checkpoints ({} to {}", names.size(), *first, *last);
  if (!job.empty()) text += fmt::format(", of job \"{}\"", job);
  text += run ? fmt::format("), none of the run {} that {} names", to_hex(*run), run_marker_name)
              : fmt::format("), and no {} that says whose they are", run_marker_name);
  return text;
}

Error orphans_error(const std::string& directory, const std::string& orphans) {
  return Error(Errc::corruption,
               fmt::format("open {0}: it holds {1}. `cp -r DIR/*` leaves {2} out: copy it along "
                           "from where they came from. Else `ckpt cp {0}/step-... ELSEWHERE` makes "
                           "a directory from which the job goes on; or move these checkpoints away "
                           "to begin anew",
                           directory, orphans, private_directory_name));
}

Error damaged_marker_error(const std::string& directory, const Error& error) {
  if (error.code() != Errc::corruption) return error;
  return Error(
      Errc::corruption,
      fmt::format("{}; it never changes: bring it back from a copy of this directory. Else "
                  "`ckpt cp {}/step-... ELSEWHERE` makes a directory from which the job "
                  "goes on",
                  error.text(), directory),
      error.cause());
}

}  // namespace ckpt::storage
