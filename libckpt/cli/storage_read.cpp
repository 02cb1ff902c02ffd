#include "cli/storage_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bucket/bucket_path.hpp"
#include "cli/table.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/place_check.hpp"
#include "storage/run_check.hpp"
#include "storage/run_directory.hpp"
#include "storage/search.hpp"

namespace ckpt::cli {

std::string parent_of(const std::string& path) {
  if (bucket::is_bucket_path(path)) return path.substr(0, path.rfind('/'));
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? std::string() : real.parent_path().string();
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string name_of(const std::string& path) {
  const std::string_view last = os::file_name(path);
  if (bucket::is_bucket_path(path) || (last != "." && last != "..")) return std::string(last);
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? std::string(last) : real.filename().string();
}

bool is_abandoned_at(Workplace& workplace, const std::string& path,
                     const format::Manifest& manifest) {
  const std::string around = parent_of(path);
  if (around.empty()) return false;
  const auto timelines =
      workplace.run(storage::load_timelines(workplace.site(around), manifest.run));
  return timelines && format::is_abandoned(timelines->history, manifest.at);
}

namespace {

Error it_is_a_file(const std::string& path) {
  return Error(Errc::invalid_argument,
               fmt::format("look for checkpoints in {}: it is a file; name the checkpoint "
                           "(step-...) or the directory that it lies in",
                           path));
}

}  // namespace

Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory) {
  auto catalog = workplace.run(storage::check_run(workplace.site(directory)));
  if (catalog) return catalog;
  if (catalog.error().cause() == std::errc::not_a_directory) return fail(it_is_a_file(directory));
  if (catalog.error().code() != Errc::not_found) return catalog;
  return fail(Errc::not_found,
              fmt::format("look for checkpoints in {}: there is no such directory; name the one "
                          "that the job was given as `dir`",
                          directory));
}

Result<bool> is_one_checkpoint(Workplace& workplace, const std::string& path) {
  const auto is_one = workplace.run(storage::is_checkpoint(workplace.site(path)));
  if (is_one) return *is_one;
  const std::error_code cause = is_one.error().cause();
  const bool is_silent = cause == std::errc::timed_out || cause == std::errc::not_connected;
  if (is_silent) return fail(Error(is_one.error()));
  return false;
}

std::vector<std::string> runs_at(Workplace& workplace, const std::string& directory) {
  std::vector<std::string> runs;
  auto found = workplace.run(storage::find_runs_everywhere(workplace.site(directory)));
  if (!found) return runs;  // The caller reads the directory, and says why it cannot be read.
  const bool is_one = found->runs.size() == 1 && found->runs.front().name.empty();
  if (is_one) return runs;
  for (const storage::FoundRun& run : found->runs) runs.push_back(run.directory);
  runs.insert(runs.end(), found->unreadable_below.begin(), found->unreadable_below.end());
  std::ranges::sort(runs);
  return runs;
}

Status refuse_in_checkpoint(Workplace& workplace, const std::string& what,
                            const std::string& directory, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return fail(Errc::invalid_argument, fmt::format("{}: {}; name a place beside it", what, why));
  };
  // A bucket's checkpoint has folders in folders; each of these holds files of ranks.
  constexpr int folders_max = 3;
  std::string path = without_slash(directory);
  if (!bucket::is_bucket_path(path)) {
    std::error_code error;  // Through links, and for a directory that is not there yet.
    const auto real = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
    if (!error) path = real.string();
  }
  for (int depth = 0; depth < folders_max && !path.empty(); ++depth) {
    if (storage::is_of_run(os::file_name(path)))
      return refuse(fmt::format("{} is the run's own", path));
    CKPT_TRY(const bool is_one, is_one_checkpoint(workplace, path));
    if (is_one) return refuse(fmt::format("{} is a checkpoint", path));
    const std::string above = path.substr(0, path.rfind('/'));
    if (bucket::is_bucket_path(path) != bucket::is_bucket_path(above)) break;
    path = above;
  }
  const bool is_run =
      workplace.run(storage::read_run_marker(workplace.site(directory))).has_value();
  if (is_run && (storage::is_of_run(name) || storage::step_named(name)))
    return refuse(fmt::format("{} has a name of the run's own there", name));
  return {};
}

Status refuse_above_runs(Workplace& workplace, const std::string& what, const std::string& to) {
  const auto marker = workplace.run(storage::read_run_marker(workplace.site(to)));
  if (marker || marker.error().code() != Errc::not_found) return {};  // The caller reads it, too.
  const auto found = workplace.run(storage::find_runs(workplace.site(to)));
  if (!found || found->runs.empty() || found->runs.front().name.empty()) return {};
  return fail(
      Errc::invalid_argument,
      fmt::format("{} to {}: other runs lie below it ({}), and a run there would hide them; "
                  "name a directory of its own, such as {}",
                  what, to, found->runs.front().name, os::join(to, "run")));
}

Result<gather::LookedThrough> look_through(Workplace& workplace, const storage::Site& site,
                                           const std::string& name) {
  CKPT_TRY(auto step, workplace.run(storage::OpenStep::in(site, name)));
  return workplace.run(gather::look_through(std::move(step), nullptr));
}

Json to_json(const std::vector<storage::Rejected>& rejected) {
  Json list = Json::array();
  for (const storage::Rejected& each : rejected) {
    list.push_back({{"name", each.name},
                    {"damaged", storage::is_damage(each) && !storage::may_be_good(each.code)},
                    {"unreadable", storage::may_be_good(each.code)},
                    {"misplaced", each.is_misplaced},
                    {"code", to_string(each.code)},
                    {"reason", each.reason}});
  }
  return list;
}

std::string describe(const std::vector<storage::Rejected>& rejected, const std::string& directory) {
  std::string text;
  for (const storage::Rejected& each : rejected) {
    const char* const verdict = each.is_misplaced                 ? "MISPLACED"
                                : storage::may_be_good(each.code) ? "UNREADABLE"
                                : storage::is_damage(each)        ? "DAMAGED"
                                                                  : "ignored";
    text += fmt::format("{} {}: {}\n", verdict,
                        printable(directory.empty() ? each.name : os::join(directory, each.name)),
                        printable(each.reason));
  }
  return text;
}

bool has_trouble(const std::vector<storage::Rejected>& rejected) {
  return std::ranges::any_of(rejected, [](const storage::Rejected& each) {
    return storage::is_damage(each) || storage::is_unreadable(each);
  });
}

}  // namespace ckpt::cli
