#include "storage/run_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "storage/latest.hpp"
#include "storage/orphans.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// A file of ours that could not be read may be good.
Errc verdict_of(const Error& error) {
  return may_be_good(error.code()) ? error.code() : Errc::corruption;
}

void reject(Catalog& catalog, std::string_view name, Errc code, std::string reason) {
  catalog.rejected.push_back({std::string(name), code, std::move(reason), false});
}

// Returns nothing if the marker is missing or damaged, after reporting that.
Task<std::optional<format::RunId>> examine_marker(Site site, Catalog& catalog) {
  std::optional<format::RunId> run;
  const auto marker = co_await read_run_marker(site);
  if (marker) {
    const bool is_none_of_it = std::ranges::none_of(
        catalog.checkpoints, [&](const auto& each) { return each.run == marker->run; });
    if (is_none_of_it && !catalog.checkpoints.empty()) {
      reject(catalog, run_marker_name, Errc::corruption,
             fmt::format("it names run {}, and no checkpoint here is of that run",
                         to_hex(marker->run)));
    }
    run = marker->run;
    co_return run;
  }
  if (const Errc code = marker.error().code(); code != Errc::not_found) {
    // If it is no file, or lies below none, it is damaged: no trainer opens the directory.
    reject(catalog, run_marker_name, code == Errc::invalid_argument ? Errc::corruption : code,
           damaged_marker_error(site.directory(), marker.error()).message());
  } else if (const auto orphans = describe_orphans(catalog, std::nullopt); !orphans.empty()) {
    const Error error = orphans_error(site.directory(), orphans);
    reject(catalog, run_marker_name, error.code(), error.text());
  }
  co_return run;
}

Task<void> examine_timelines(Site site, format::RunId run, Catalog& catalog) {
  const auto status = co_await site.files().status(site.at(timelines_name));
  if (!status && status.error().code() == Errc::not_found) {
    if (!catalog.checkpoints.empty())  // Else the first training creates it.
      reject(catalog, timelines_name, Errc::corruption,
             "it is missing: which steps a restore has abandoned is not known any more");
    co_return Status();
  }
  const auto timelines = co_await load_timelines(site, run);
  if (!timelines)
    reject(catalog, timelines_name, verdict_of(timelines.error()), timelines.error().message());
  co_return Status();
}

// A damaged file may hold any bytes, which neither a terminal nor JSON takes. Ours are ASCII.
std::string in_ascii(std::string_view name) {
  constexpr std::size_t shown_max = 100;
  std::string out;
  for (const char letter : name.substr(0, shown_max)) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain = byte >= 0x20 && byte < 0x7f;
    out += is_plain ? std::string(1, letter) : fmt::format("\\x{:02x}", byte);
  }
  return name.size() > shown_max ? out + "..." : out;
}

// Notes what is wrong with `latest`, if it names one of the checkpoints or none.
void examine_name(Catalog& catalog, std::string name) {
  const bool is_line = !name.empty() && name.back() == '\n';
  if (is_line) name.pop_back();
  const auto named = std::ranges::find(catalog.checkpoints, name, &Checkpoint::name);
  const auto unread = std::ranges::find(catalog.rejected, name, &Rejected::name);
  if (unread != catalog.rejected.end() && may_be_good(unread->code)) return;  // It says so.
  if (!is_line || named == catalog.checkpoints.end()) {
    return reject(
        catalog, latest_name, Errc::corruption,
        fmt::format("it names \"{}\", which is no whole checkpoint here", in_ascii(name)));
  }
  if (named->is_abandoned) {
    return reject(catalog, latest_name, Errc::invalid_argument,
                  fmt::format("it names {}, which a restore to an older step has abandoned", name));
  }
  const std::string newest = newest_living(catalog)->name;
  if (name == newest) return;
  reject(catalog, latest_name, Errc::invalid_argument,
         fmt::format("it names {}, and {} is newer", name, newest));
}

// `latest` is a hint for people and other tools; a restore does not read it.
Task<void> examine_latest(Site site, Catalog& catalog) {
  const auto text = co_await read_latest(site);
  if (text) {
    examine_name(catalog, *text);
  } else if (text.error().code() != Errc::not_found) {  // Else the first save may be running.
    reject(catalog, latest_name, verdict_of(text.error()), text.error().message());
  }
  co_return Status();
}

Task<Catalog> check_once(Site site) {
  CKPT_CO_TRY(RunCatalog read, co_await read_run_catalog(site));
  Catalog& catalog = read.catalog;
  CKPT_CO_TRY(const auto run, co_await examine_marker(site, catalog));
  if (run) CKPT_CO_CHECK(co_await examine_timelines(site, *run, catalog));
  CKPT_CO_CHECK(co_await examine_latest(site, catalog));
  co_return std::move(catalog);
}

}  // namespace

Task<Catalog> check_run(Site site) {
  constexpr int rounds_max = 3;
  for (int round = 1;; ++round) {
    CKPT_CO_TRY(auto catalog, co_await check_once(site));
    // A running job may have published the named step after the checkpoints were listed.
    const bool is_odd = std::ranges::any_of(catalog.rejected, [](const Rejected& each) {
      return each.name == latest_name && is_damage(each);
    });
    if (!is_odd || round == rounds_max) co_return catalog;
  }
}

bool may_be_good(Errc code) {
  return is_unreadable(code) || code == Errc::version_mismatch;
}

}  // namespace ckpt::storage
