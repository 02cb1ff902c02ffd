#include "storage/run_directory.hpp"

#include <fmt/format.h>

#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "format/manifest.hpp"
#include "storage/full_disk.hpp"
#include "storage/orphans.hpp"
#include "storage/step_directory.hpp"
#include "storage/text_bytes.hpp"

namespace ckpt::storage {

namespace {

std::string_view parent_of(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Task<void> make_run_directory(Site site) {
  const std::string& directory = site.directory();
  const auto status = co_await site.files().status(site.at("."));
  const bool is_file = status ? status->kind != os::EntryKind::directory
                              : status.error().cause() == std::errc::not_a_directory;
  if (is_file) {
    co_return fail(Errc::invalid_argument, "open " + directory + ": it is not a directory");
  }
  if (status) co_return Status();
  if (status.error().code() != Errc::not_found) {
    co_return fail(Error(status.error()).context("open " + directory));
  }
  Status made = co_await site.files().make_directory(directory);
  if (!made && made.error().code() == Errc::not_found) {
    // Not `not_found`: for a restore that means that training begins anew.
    co_return fail(Errc::invalid_argument,
                   "make " + directory + ": its parent directory does not exist");
  }
  if (!made && made.error().cause() == std::errc::not_a_directory) {
    co_return fail(Errc::invalid_argument, "open " + directory + ": it is not a directory");
  }
  if (!made) co_return made;
  Status synced = co_await site.files().sync_directory(os::join(parent_of(directory), "."));
  co_return synced;
}

// If the old directory is mounted again, it hides everything made below its mount point.
Task<void> refuse_elsewhere(Site site, MountedAt before) {
  CKPT_CO_TRY(const MountedAt there, co_await mounted_at(site));
  if (there == before) co_return Status();
  const char* const where =
      there.device == before.device ? "was mounted from elsewhere" : "was on another file system";
  co_return fail(Errc::unavailable, fmt::format("{} {} when the job began: is it mounted?",
                                                os::display(site.directory()), where));
}

// A training that begins anew below the mount point hides what it stores there, once the file
// system is mounted again, and nobody finds that it began anew.
Task<void> refuse_root(Site site) {
  CKPT_CO_TRY(const MountedAt there, co_await mounted_at(site));
  CKPT_CO_TRY(const os::FileStatus root, co_await site.files().status("/."));
  if (there.device != root.device) co_return Status();
  co_return fail(Errc::unavailable,
                 fmt::format("{} lies on the root file system: is it mounted? The daemon was "
                             "started with --require-mount (LIBCKPT_REQUIRE_MOUNT)",
                             os::display(site.directory())));
}

// Another node that begins a timeline just now may remove this temporary file as left behind.
Task<void> remove_aside(Site site, std::string aside) {
  Status removed = co_await site.files().remove_file(aside);
  if (!removed && removed.error().code() == Errc::not_found) removed = Status();
  co_return removed;
}

struct Placing {
  std::string aside;
  std::string path;
  os::RenameMode mode = os::RenameMode::replace;
};

Task<void> write_and_rename(Site site, Placing placing, std::string text) {
  constexpr int attempts_max = 3;
  Status placed;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    placed = co_await site.files().write_small(placing.aside, bytes_of_text(text));
    if (!placed) break;
    CKPT_POINT("aside.rename.before");
    placed = co_await site.files().rename(placing.aside, placing.path, placing.mode);
    CKPT_POINT("aside.rename.after");
    if (placed) co_return placed;
    if (placed.error().code() != Errc::not_found) break;  // Else it was removed meanwhile.
  }
  const Status removed = co_await remove_aside(site, placing.aside);
  if (!removed) log_warning("storage: remove {}: {}", placing.aside, removed.error().message());
  co_return placed;
}

// For a directory without a marker: this job has nothing there that could make room.
Error with_hint(const Error& error, const std::string& directory) {
  if (!is_disk_full(error)) return error;
  return Error(
      error.code(),
      fmt::format("make {} the directory of a job: {}: make room there first; `ckpt gc DIR "
                  "--keep N` removes older checkpoints of another job",
                  os::display(directory), error.text()),
      error.cause());
}

// Returns false if another node was faster.
Task<bool> create_marker(Site site, RunOrder order) {
  format::RunMarker marker;
  marker.job = order.job;
  marker.run = order.fresh_run;
  auto created = co_await create_once(site, std::string(run_marker_name), format::render(marker),
                                      aside_name(run_marker_name, order.attempt));
  co_return created;
}

// Also if another node is faster.
Task<void> make_marker(Site site, RunOrder order) {
  CKPT_CO_CHECK(co_await site.files().make_directory(site.at(private_directory_name)));
  CKPT_CO_TRY(const bool created, co_await create_marker(site, order));
  if (created) log_info("storage: {} is now the directory of job {}", site.directory(), order.job);
  co_return Status();
}

// If there are checkpoints, a missing marker was lost: with a new one they would belong to nobody.
Task<void> refuse_orphans(Site site) {
  CatalogOptions options;
  options.make_durable = false;
  CKPT_CO_TRY(const Catalog catalog, co_await read_catalog(site, options));
  const std::string orphans = describe_orphans(catalog, std::nullopt);
  if (orphans.empty()) co_return Status();
  // Another node may have made the marker, and this node's cache may not show it yet.
  const auto marker = co_await read_run_marker(site);
  if (marker || marker.error().code() != Errc::not_found) co_return Status();
  co_return fail(orphans_error(site.directory(), orphans));
}

// A readable marker does not prove that the directory is writable, and the first flush would be a
// bad time to find out. A full disk is no reason to refuse a job that lies there: its steps can be
// restored, and its own rule makes room.
Task<void> prove_writable(Site site, std::uint64_t attempt) {
  const std::string probe = site.at(aside_name(run_marker_name, attempt));
  Status written = co_await site.files().write_small(probe, bytes_of_text("probe\n"));
  const Status removed = co_await remove_aside(site, probe);
  if (!written && is_disk_full(written.error())) {
    log_warning(
        "storage: {} has no room for a new step: {}; max_ckpt_num=N keeps fewer of the "
        "job's checkpoints, and `ckpt gc {} --keep N` removes some at once",
        os::display(site.directory()), written.error().message(), os::display(site.directory()));
    if (!removed)
      log_warning("storage: remove {}: {}", os::display(probe), removed.error().message());
    co_return Status();
  }
  if (!written) {
    co_return fail(std::move(written).error().context("prove that " + site.directory() +
                                                      " can be written to"));
  }
  co_return removed;
}

// A checkpoint's own path is easily given for that of its run.
Task<void> refuse_checkpoint(Site site) {
  const std::string& directory = site.directory();
  for (const std::string_view place : {std::string_view(directory), parent_of(directory)}) {
    const auto manifest = co_await site.files().status(os::join(place, format::manifest_name));
    if (!manifest) continue;
    co_return fail(Errc::invalid_argument,
                   fmt::format("make {} the directory of a job: {} is a checkpoint", directory,
                               place == directory ? "it" : place));
  }
  co_return Status();
}

}  // namespace

// Some servers accept a condition and ignore it. Two daemons could then publish over one another.
Task<void> prove_conditions(Site site, std::uint64_t attempt) {
  const std::string probe = site.at(aside_name(run_marker_name, attempt));
  const os::PutCondition absent(os::PutMode::if_absent);
  Status first = co_await site.objects()->put_small(probe, bytes_of_text("first\n"), absent);
  if (!first) {
    co_return fail(
        std::move(first).error().context("prove that " + site.directory() + " can be written to"));
  }
  const Status second =
      co_await site.objects()->put_small(probe, bytes_of_text("second\n"), absent);
  CKPT_CO_CHECK(co_await remove_aside(site, probe));
  if (!second && second.error().cause() == std::errc::file_exists) co_return Status();
  if (!second) co_return fail(Error(second.error()));
  co_return fail(Errc::unsupported, "open " + site.directory() +
                                        ": its server ignores conditional writes (If-None-Match, "
                                        "or Google's x-goog-if-generation-match), "
                                        "without which checkpoints are not safe there");
}

Task<format::RunMarker> read_run_marker(Site site) {
  const std::string path = site.at(run_marker_name);
  CKPT_CO_TRY(const auto bytes, co_await site.files().read_small(path, format::run_file_bytes_max));
  auto marker = format::parse_run_marker(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!marker) co_return fail(std::move(marker).error().context("read " + os::display(path)));
  co_return marker;
}

Task<MountedAt> mounted_at(Site site) {
  if (site.objects() != nullptr)
    co_return fail(Errc::unsupported, os::display(site.directory()) + " is mounted nowhere");
  auto status = co_await site.files().status(site.at("."));
  std::string_view above = site.directory();
  while (!status && status.error().code() == Errc::not_found && above != parent_of(above)) {
    above = parent_of(above);
    status = co_await site.files().status(os::join(above, "."));
  }
  if (!status) co_return fail(std::move(status).error());
  co_return MountedAt{status->device, status->mount};
}

std::string silence_of(const Site& site) {
  const os::Objects* const objects = site.objects();
  return objects == nullptr ? std::string() : objects->silence(site.directory());
}

Task<format::RunMarker> open_run_directory(Site site, RunOrder order) {
  if (order.mounted) CKPT_CO_CHECK(co_await refuse_elsewhere(site, *order.mounted));
  if (order.requires_mount && site.objects() == nullptr) CKPT_CO_CHECK(co_await refuse_root(site));
  if (site.objects() != nullptr) CKPT_CO_CHECK(co_await prove_conditions(site, order.attempt));
  auto marker = co_await read_run_marker(site);
  if (!marker && marker.error().code() == Errc::not_found)
    CKPT_CO_CHECK(co_await refuse_checkpoint(site));
  const Status there = co_await make_run_directory(site);
  if (!there) co_return fail(with_hint(there.error(), site.directory()));
  marker = co_await read_run_marker(site);
  if (!marker && marker.error().code() == Errc::not_found) {
    if (!order.is_running) CKPT_CO_CHECK(co_await refuse_orphans(site));
    const Status made = co_await make_marker(site, order);
    if (!made) co_return fail(with_hint(made.error(), site.directory()));
    marker = co_await read_run_marker(site);
  } else if (marker && site.objects() == nullptr) {
    CKPT_CO_CHECK(co_await prove_writable(site, order.attempt));
  }
  if (!marker) co_return fail(damaged_marker_error(site.directory(), marker.error()));
  if (marker->job != order.job) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("open {} for job \"{}\": it is the directory of job \"{}\"",
                               site.directory(), order.job, marker->job));
  }
  // The name of the log becomes durable here, so that later each line needs one sync and no second
  // one for the name. An error comes up again when something is logged.
  if (site.objects() == nullptr) {
    std::vector<std::byte> nothing;
    (void)co_await site.files().append_small(site.at(log_name), std::move(nothing),
                                             os::Syncing::later);
  }
  // Also if another node made it: it may have died before its sync.
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(private_directory_name)));
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  co_return marker;
}

Task<format::Timelines> load_timelines(Site site, format::RunId run) {
  const std::string path = site.at(timelines_name);
  const auto bytes = co_await site.files().read_small(path, format::run_file_bytes_max);
  format::Timelines none;
  none.run = run;
  if (!bytes && bytes.error().code() == Errc::not_found) co_return none;
  if (!bytes) co_return fail(bytes.error());
  auto timelines = format::parse_timelines(
      std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  if (!timelines) co_return fail(std::move(timelines).error().context("read " + os::display(path)));
  if (timelines->run != run) {
    co_return fail(Errc::invalid_argument, "read " + os::display(path) + ": it is of another run");
  }
  co_return timelines;
}

Task<void> store_timelines(Site site, format::Timelines timelines, std::uint64_t attempt) {
  const std::string text = format::render(timelines);
  const std::string aside = aside_name(timelines_name, attempt);
  Status done = co_await replace_file(site, std::string(timelines_name), text, aside);
  co_return done;
}

Task<void> replace_hint(Site site, std::string name, std::string text, std::string aside_name) {
  if (site.objects() != nullptr) {
    const os::PutCondition replace(os::PutMode::replace);
    Status put = co_await site.objects()->put_small(site.at(name), bytes_of_text(text), replace);
    co_return put;
  }
  const Placing placing{site.at(aside_name), site.at(name), os::RenameMode::replace};
  Status placed = co_await write_and_rename(site, placing, std::move(text));
  co_return placed;
}

Task<void> replace_file(Site site, std::string name, std::string text, std::string aside_name) {
  const std::string directory = os::join(parent_of(site.at(name)), ".");
  CKPT_CO_CHECK(co_await replace_hint(site, name, std::move(text), std::move(aside_name)));
  if (site.objects() != nullptr) co_return Status();
  Status synced = co_await site.files().sync_directory(directory);
  co_return synced;
}

Task<bool> create_once(Site site, std::string name, std::string text, std::string aside_name) {
  if (site.objects() != nullptr) {
    const os::PutCondition absent(os::PutMode::if_absent);
    Status put = co_await site.objects()->put_small(site.at(name), bytes_of_text(text), absent);
    if (put) co_return true;
    if (put.error().cause() != std::errc::file_exists) co_return fail(std::move(put).error());
    co_return false;
  }
  const Placing placing{site.at(aside_name), site.at(name), os::RenameMode::no_replace};
  const Status placed = co_await write_and_rename(site, placing, std::move(text));
  if (placed) co_return true;
  if (placed.error().cause() != std::errc::file_exists) co_return fail(Error(placed.error()));
  co_return false;
}

}  // namespace ckpt::storage
