#include "cli/storage_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bucket/bucket_path.hpp"
#include "cli/table.hpp"
#include "storage/orphans.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/search.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::cli {

const storage::Checkpoint* newest_living(const storage::Catalog& catalog) {
  for (auto it = catalog.checkpoints.rbegin(); it != catalog.checkpoints.rend(); ++it) {
    if (!it->is_abandoned) return &*it;
  }
  return nullptr;
}

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
  const storage::Site site(workplace.files(), workplace.clock(), around);
  const auto timelines = workplace.run(storage::load_timelines(site, manifest.run));
  return timelines && format::is_abandoned(timelines->history, manifest.at);
}

namespace {

// A file of ours that could not be read may be good.
Errc verdict_of(const Error& error) {
  return may_be_good(error.code()) ? error.code() : Errc::corruption;
}

void reject(storage::Catalog& catalog, std::string_view name, Errc code, std::string reason) {
  catalog.rejected.push_back({std::string(name), code, std::move(reason), false});
}

// Returns nothing if the marker is missing or damaged, after reporting that.
std::optional<format::RunId> examine_marker(Workplace& workplace, const storage::Site& site,
                                            storage::Catalog& catalog) {
  const auto marker = workplace.run(storage::read_run_marker(site));
  if (marker) {
    const bool is_none_of_it = std::ranges::none_of(
        catalog.checkpoints, [&](const auto& each) { return each.run == marker->run; });
    if (is_none_of_it && !catalog.checkpoints.empty()) {
      reject(catalog, storage::run_marker_name, Errc::corruption,
             fmt::format("it names run {}, and no checkpoint here is of that run",
                         to_hex(marker->run)));
    }
    return marker->run;
  }
  if (const Errc code = marker.error().code(); code != Errc::not_found) {
    // If it is no file, or lies below none, it is damaged: no trainer opens the directory.
    reject(catalog, storage::run_marker_name,
           code == Errc::invalid_argument ? Errc::corruption : code,
           storage::damaged_marker_error(site.directory(), marker.error()).message());
  } else if (const auto orphans = storage::describe_orphans(catalog, std::nullopt);
             !orphans.empty()) {
    const Error error = storage::orphans_error(site.directory(), orphans);
    reject(catalog, storage::run_marker_name, error.code(), error.text());
  }
  return std::nullopt;
}

void examine_timelines(Workplace& workplace, const storage::Site& site, format::RunId run,
                       storage::Catalog& catalog) {
  const auto status = workplace.run(site.files().status(site.at(storage::timelines_name)));
  if (!status && status.error().code() == Errc::not_found) {
    if (catalog.checkpoints.empty()) return;  // The first training creates it.
    return reject(catalog, storage::timelines_name, Errc::corruption,
                  "it is missing: which steps a restore has abandoned is not known any more");
  }
  const auto timelines = workplace.run(storage::load_timelines(site, run));
  if (timelines) return;
  reject(catalog, storage::timelines_name, verdict_of(timelines.error()),
         timelines.error().message());
}

// `latest` is a hint for people and other tools; a restore does not read it.
void examine_latest(Workplace& workplace, const storage::Site& site, storage::Catalog& catalog) {
  constexpr std::uint64_t bytes_max = 4096;
  const auto bytes =
      workplace.run(site.files().read_small(site.at(storage::latest_name), bytes_max));
  if (!bytes) {
    if (bytes.error().code() == Errc::not_found) return;  // The first save may be running.
    return reject(catalog, storage::latest_name, verdict_of(bytes.error()),
                  bytes.error().message());
  }
  std::string name(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const bool is_line = !name.empty() && name.back() == '\n';
  if (is_line) name.pop_back();
  const auto named = std::ranges::find(catalog.checkpoints, name, &storage::Checkpoint::name);
  const auto unread = std::ranges::find(catalog.rejected, name, &storage::Rejected::name);
  if (unread != catalog.rejected.end() && may_be_good(unread->code)) return;  // It says so.
  if (!is_line || named == catalog.checkpoints.end()) {
    return reject(catalog, storage::latest_name, Errc::corruption,
                  fmt::format("it names \"{}\", which is no whole checkpoint here", name));
  }
  if (named->is_abandoned) {
    return reject(catalog, storage::latest_name, Errc::invalid_argument,
                  fmt::format("it names {}, which a restore to an older step has abandoned", name));
  }
  const std::string newest = newest_living(catalog)->name;
  if (name == newest) return;
  reject(catalog, storage::latest_name, Errc::invalid_argument,
         fmt::format("it names {}, and {} is newer", name, newest));
}

Error it_is_a_file(const std::string& path) {
  return Error(Errc::invalid_argument,
               fmt::format("look for checkpoints in {}: it is a file; name the checkpoint "
                           "(step-...) or the directory that it lies in",
                           path));
}

Result<storage::Catalog> read_once(Workplace& workplace, const std::string& directory) {
  const storage::Site site(workplace.files(), workplace.clock(), directory);
  auto read = workplace.run(storage::read_run_catalog(site));
  if (read) {
    storage::Catalog& catalog = read->catalog;
    if (const auto run = examine_marker(workplace, site, catalog))
      examine_timelines(workplace, site, *run, catalog);
    examine_latest(workplace, site, catalog);
    return std::move(catalog);
  }
  if (read.error().cause() == std::errc::not_a_directory) return fail(it_is_a_file(directory));
  if (read.error().code() != Errc::not_found) return fail(std::move(read).error());
  return fail(Errc::not_found,
              fmt::format("look for checkpoints in {}: there is no such directory; name the one "
                          "that the job was given as `dir`",
                          directory));
}

}  // namespace

Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory) {
  constexpr int rounds_max = 3;
  for (int round = 1;; ++round) {
    CKPT_TRY(auto catalog, read_once(workplace, directory));
    // A running job may have published the named step after the checkpoints were listed.
    const bool is_odd = std::ranges::any_of(catalog.rejected, [](const storage::Rejected& each) {
      return each.name == storage::latest_name && storage::is_damage(each);
    });
    if (!is_odd || round == rounds_max) return catalog;
  }
}

Result<std::vector<std::string>> runs_at(Workplace& workplace, const std::string& directory) {
  std::vector<std::string> runs;
  const auto manifest =
      workplace.run(workplace.files().status(os::beneath(directory, format::manifest_name)));
  if (manifest) return runs;
  const std::error_code cause = manifest.error().cause();
  if (cause == std::errc::timed_out || cause == std::errc::not_connected)
    return fail(Error(manifest.error()));
  auto found =
      workplace.run(storage::find_runs_everywhere(workplace.files(), workplace.clock(), directory));
  if (!found) return runs;  // The caller reads the directory, and says why it cannot be read.
  const bool is_one = found->runs.size() == 1 && found->runs.front().name.empty();
  if (is_one) return runs;
  for (const storage::FoundRun& run : found->runs) runs.push_back(run.directory);
  std::ranges::sort(runs);
  return runs;
}

Status refuse_above_runs(Workplace& workplace, const std::string& what, const std::string& to) {
  const storage::Site target(workplace.files(), workplace.clock(), to);
  const auto marker = workplace.run(storage::read_run_marker(target));
  if (marker || marker.error().code() != Errc::not_found) return {};  // The caller reads it, too.
  const auto found = workplace.run(storage::find_runs(workplace.files(), workplace.clock(), to));
  if (!found || found->runs.empty() || found->runs.front().name.empty()) return {};
  return fail(
      Errc::invalid_argument,
      fmt::format("{} to {}: other runs lie below it ({}), and a run there would hide them; "
                  "name a directory of its own, such as {}",
                  what, to, found->runs.front().name, os::join(to, "run")));
}

bool may_be_good(Errc code) {
  return storage::is_unreadable(code) || code == Errc::version_mismatch;
}

Json to_json(const std::vector<storage::Rejected>& rejected) {
  Json list = Json::array();
  for (const storage::Rejected& each : rejected) {
    list.push_back({{"name", each.name},
                    {"damaged", storage::is_damage(each) && !may_be_good(each.code)},
                    {"unreadable", may_be_good(each.code)},
                    {"misplaced", each.is_misplaced},
                    {"code", to_string(each.code)},
                    {"reason", each.reason}});
  }
  return list;
}

std::string describe(const std::vector<storage::Rejected>& rejected, const std::string& directory) {
  std::string text;
  for (const storage::Rejected& each : rejected) {
    const char* const verdict = each.is_misplaced          ? "MISPLACED"
                                : may_be_good(each.code)   ? "UNREADABLE"
                                : storage::is_damage(each) ? "DAMAGED"
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
