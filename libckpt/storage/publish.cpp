// How a step is published:
//   1. The front of every rank's part is read. It must name the record that the rank reported.
//   2. The files of every rank must exist with their sizes. The notes of writers on declared copies
//   are compared and removed.
//   3. Files of a later turn are renamed over any that an earlier writer left. If that writer has
//   the file open, it loses its name; if it wants to create it later, it fails, since the name
//   exists. Then the manifest is written and synced: it seals the fronts.
//   4. Files of other turns are removed.
//   5. The work directory is synced.
//   6. It is renamed to the step's name, or exchanged with a directory of that name; back again, if
//   a newer timeline has published that one meanwhile.
//   7. The parent is synced. The step is DURABLE.
//   8. The save is logged, `latest` is replaced, and an exchanged directory is removed. Failures
//   here are logged and change nothing.
#include "storage/publish.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ckpt/version.hpp>
#include <optional>
#include <set>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_publish.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/metrics_reader.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/readable.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using format::Manifest;

// Fronts and sizes are small reads, and on a network file system each is a round trip.
constexpr std::size_t record_reads_in_flight = 16;

// The results of steps 1 and 2; lives in publish's frame.
struct Collected {
  Site site;
  PublishOrder order;
  Manifest manifest;
  std::vector<Digest> models;  // By rank.
  ComparedCopies copies;
};

Manifest begin_manifest(const Site& site, const PublishOrder& order) {
  Manifest manifest;
  manifest.writer = "libckpt " CKPT_VERSION_STRING;
  const auto now = site.clock().wall_time().time_since_epoch();
  manifest.created_unix_seconds =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  manifest.job = order.job;
  manifest.run = order.run;
  manifest.at = order.at;
  manifest.world_size = order.world_size;
  manifest.members = order.members;
  manifest.nodes = order.nodes;
  manifest.shards.resize(order.world_size);
  return manifest;
}

// Steps 1 and 2, for one rank.
Task<void> collect(Collected& collected, std::uint32_t rank) {
  const Site& site = collected.site;
  const PublishOrder& order = collected.order;
  const std::string directory = attempt_path(site, order.work_name);
  const std::uint32_t turn = order.turn_of(rank);
  const std::string path = path_in_attempt(site.files(), directory, format::part_name(rank), turn);
  auto sealed = co_await read_front(site.files(), path);
  if (!sealed && sealed.error().code() == Errc::not_found) {
    co_return fail(
        Errc::not_found,
        fmt::format("{}: the shard of rank {} is not in {}: is {} one directory that "
                    "all nodes share?",
                    publish_label(order), rank, os::display(directory), site.directory()));
  }
  if (!sealed) co_return fail(std::move(sealed).error().context(publish_label(order)));
  format::ManifestShard shard = format::entry_of(sealed->front, sealed->seal);
  const Status belongs = format::check_belongs(collected.manifest, rank, sealed->front.record);
  if (!belongs) co_return fail(Error(belongs.error()).context(publish_label(order)));
  if (shard.record_digest != order.digests[rank]) {
    co_return fail(Errc::corruption,
                   fmt::format("{}: the part of rank {} is not the one it reported",
                               publish_label(order), rank));
  }
  if (site.objects() != nullptr)
    shard.folder = shard_folder(parse_work_directory(order.work_name).value(), turn);
  for (const format::StoredFile& expected : shard.files) {
    const std::string file = path_in_attempt(site.files(), directory, expected.name, turn);
    CKPT_CO_TRY(const auto status, co_await site.files().status(file));
    if (status.kind == os::EntryKind::file && status.bytes == expected.bytes) continue;
    co_return fail(Errc::corruption,
                   fmt::format("{}: {} has {} bytes, its part says {}", publish_label(order),
                               os::display(file), status.bytes, expected.bytes));
  }
  collected.manifest.shards[rank] = std::move(shard);
  collected.models[rank] = sealed->front.record.model;
  if (rank != 0) co_return Status();
  auto metrics = co_await read_metrics(site.files(), directory, std::move(sealed->front), turn);
  if (metrics) {
    collected.manifest.metrics = std::move(metrics).value();
  } else {  // A step without metrics is better than none.
    log_warning("storage: {}: its metrics are lost: {}", publish_label(order),
                metrics.error().message());
  }
  co_return Status();
}

// Step 2, for declared copies. A note that cannot be read costs the comparison and nothing else.
Task<void> compare(Collected& collected) {
  const Site& site = collected.site;
  const PublishOrder& order = collected.order;
  const std::string directory = attempt_path(site, order.work_name);
  auto compared = co_await compare_copies(site.files(), directory, order.world_size, order.turns);
  if (compared) {
    collected.copies = std::move(compared).value();
  } else {
    log_warning("storage: {}: its copies are not compared: {}", publish_label(order),
                compared.error().message());
  }
  co_return Status();
}

// Step 3, for files of later turns. The part comes last: it says that the others are whole.
Task<void> name_later_turns(Collected& collected) {
  const Site& site = collected.site;
  const PublishOrder& order = collected.order;
  const std::string directory = site.at(order.work_name);
  for (const format::ManifestShard& shard : collected.manifest.shards) {
    const std::uint32_t turn = order.turn_of(shard.rank);
    if (turn == 0) continue;
    std::vector<std::string> names;
    for (const format::StoredFile& file : shard.files) names.push_back(file.name);
    names.push_back(format::part_name(shard.rank));
    for (const std::string& name : names) {
      const std::string from = os::join(directory, turn_name(name, turn));
      const std::string to = os::join(directory, name);
      CKPT_CO_CHECK(co_await site.files().rename(from, to, os::RenameMode::replace));
    }
  }
  co_return Status();
}

// Step 4, if a part had several writers. Those of one part need not store their files alike, so an
// earlier one may leave some under names that the manifest does not have.
Task<void> remove_leftovers(Site site, std::string directory, std::set<std::string> kept) {
  CKPT_CO_TRY(const auto entries, co_await site.files().list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const std::string_view stem = without_turn(entry.name);
    const bool is_ours = format::is_name_of_rank(stem) && !kept.contains(entry.name);
    if (entry.kind != os::EntryKind::file || !is_ours) continue;
    const std::string path = os::join(directory, entry.name);
    Status removed = co_await site.files().remove_file(path);
    if (!removed && removed.error().code() != Errc::not_found) co_return removed;
  }
  co_return Status();
}

// Steps 3 to 5.
Task<void> complete_work_directory(Site site, PublishOrder order, std::string text,
                                   std::set<std::string> kept) {
  const std::string directory = site.at(order.work_name);
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  CKPT_POINT("manifest.before");
  const std::string path = os::join(directory, format::manifest_name);
  CKPT_CO_CHECK(co_await site.files().write_small(path, std::move(copy)));
  CKPT_POINT("manifest.fsync");
  if (!order.turns.empty()) {
    CKPT_CO_CHECK(co_await remove_leftovers(site, directory, std::move(kept)));
  }
  CKPT_POINT("flush.dirsync.before");
  CKPT_CO_CHECK(co_await site.files().sync_directory(directory));
  CKPT_POINT("flush.dirsync.after");
  co_return Status();
}

// Directories of one step and run, none of them newer than what is published, as they were listed.
using Generations = std::vector<Checkpoint>;

struct Placed {
  std::string name;
  std::string exchanged;  // Hidden name of the directory that was replaced; empty: none.
  Generations others;
};

// Returns false if the file system has no exchange.
Task<bool> exchange(Site site, std::string work_name, std::string name) {
  constexpr auto mode = os::RenameMode::exchange;
  Status done = co_await site.files().rename(site.at(work_name), site.at(name), mode);
  if (done) co_return true;
  if (done.error().code() == Errc::unsupported) co_return false;
  co_return fail(done.error());
}

// A later try may know more. Permissions stay as they are: the step gets another name.
bool may_be_read_later(const Error& error) {
  return is_unreadable(error.code()) && error.cause() != std::errc::permission_denied &&
         error.cause() != std::errc::operation_not_permitted;
}

Error published_already(const PublishOrder& order, std::uint64_t timeline) {
  return Error(Errc::invalid_argument,
               fmt::format("{} of timeline {}: timeline {} has published it already",
                           publish_label(order), order.at.timeline, timeline));
}

// After an exchange: if a newer timeline has published the step since we looked, that one goes
// back.
Task<void> keep_newer(Site site, PublishOrder order, std::string name) {
  CKPT_ASSERT(parse_step_directory(name).has_value());
  const auto taken = co_await read_manifest(site, order.work_name);
  if (!taken || (*taken)->run != order.run || (*taken)->at.timeline <= order.at.timeline)
    co_return Status();
  CKPT_CO_TRY(const bool is_back, co_await exchange(site, order.work_name, name));
  CKPT_ASSERT(is_back);  // It was exchanged a moment ago.
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  co_return fail(published_already(order, (*taken)->at.timeline));
}

// Returns none if no generation has this name.
std::optional<Checkpoint> take_out(Generations& generations, const std::string& name) {
  const auto found = std::ranges::find(generations, name, &Checkpoint::name);
  if (found == generations.end()) return std::nullopt;
  std::optional<Checkpoint> taken(std::move(*found));
  generations.erase(found);
  return taken;
}

// The directories of this step that are certainly of this run and may be replaced.
Task<Generations> find_generations(Site site, PublishOrder order) {
  Generations found;
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = parse_step_directory(entry.name);
    if (!parsed || parsed->step != order.at.step) continue;
    const auto manifest = co_await read_manifest(site, entry.name);
    if (!manifest && may_be_read_later(manifest.error())) co_return fail(manifest.error());
    if (!manifest || (*manifest)->run != order.run) continue;
    const Status readable = co_await check_readable(site, entry.name, *manifest);
    if (!readable) {
      log_warning("storage: {} stays beside step {}: {}", entry.name, number(order.at.step),
                  readable.error().text());
      continue;
    }
    if ((*manifest)->at.timeline > order.at.timeline)
      co_return fail(published_already(order, (*manifest)->at.timeline));
    CKPT_CO_TRY(Checkpoint listed, co_await describe_on(site.compute(), *manifest, entry.name));
    found.push_back(std::move(listed));
  }
  co_return found;
}

// Step 6. Never touches a directory that is not certainly of this run: the step then gets the next
// generation's name.
Task<Placed> put_in_place(Site site, PublishOrder order) {
  Placed placed;
  CKPT_CO_TRY(placed.others, co_await find_generations(site, order));
  for (std::uint32_t generation = 1; generation <= generations_max; ++generation) {
    placed.name = step_directory_name(order.at.step, generation);
    constexpr auto mode = os::RenameMode::no_replace;
    const std::string target = site.at(placed.name);
    Status renamed = co_await site.files().rename(site.at(order.work_name), target, mode);
    if (renamed) {
      take_out(placed.others, placed.name);  // Somebody has removed it since we looked.
      co_return placed;
    }
    if (renamed.error().cause() != std::errc::file_exists) co_return fail(renamed.error());
    auto taken = take_out(placed.others, placed.name);
    if (!taken) {  // Somebody may have published it since we looked.
      CKPT_CO_TRY(placed.others, co_await find_generations(site, order));
      taken = take_out(placed.others, placed.name);
    }
    if (!taken) continue;
    CKPT_CO_TRY(const bool exchanged, co_await exchange(site, order.work_name, placed.name));
    if (exchanged) {
      CKPT_CO_CHECK(co_await keep_newer(site, order, placed.name));
      placed.exchanged = order.work_name;
      co_return placed;
    }
    placed.others.push_back(std::move(*taken));
  }
  co_return fail(Errc::exhausted, fmt::format("{}: all {} names of it are taken",
                                              publish_label(order), generations_max));
}

// Only a hint for people and for tools that follow it; recovery reads manifests.
Task<void> point_latest(Site site, std::string name, std::uint64_t attempt) {
  const std::string text = name + "\n";
  const std::string aside = aside_name("." + std::string(latest_name), attempt);
  CKPT_POINT("latest.before");
  CKPT_CO_CHECK(co_await replace_hint(site, std::string(latest_name), text, aside));
  CKPT_POINT("latest.after");
  co_return Status();
}

Task<void> retire(Site site, Placed placed, PublishOrder order) {
  const std::string reason =
      fmt::format("saved again as {} of timeline {}", placed.name, order.at.timeline);
  if (!placed.exchanged.empty()) {
    CKPT_CO_CHECK(co_await discard_work_directory(site, placed.exchanged, reason));
  }
  for (const Checkpoint& other : placed.others) {
    Status removed = co_await remove_checkpoint(site, other, order.run, reason);
    // Others publish the same step, and remove what it replaces.
    if (!removed && removed.error().code() != Errc::not_found) co_return removed;
  }
  co_return Status();
}

// Step 8: failures are logged and change nothing.
Task<void> after_publishing(Site site, Placed placed, PublishOrder order, std::uint64_t bytes) {
  Event event;
  event.operation = "save";
  event.path = placed.name;
  event.at = order.at;
  event.bytes = bytes;
  event.reason = "published";
  const Status logged = co_await record_event(site, std::move(event), os::Syncing::later);
  if (!logged) log_warning("storage: {}", logged.error().message());
  const auto work = parse_work_directory(order.work_name);
  CKPT_ASSERT(work.has_value());
  const Status pointed = co_await point_latest(site, placed.name, work->attempt);
  if (!pointed) log_warning("storage: update `latest`: {}", pointed.error().message());
  const Status retired = co_await retire(site, placed, order);
  if (!retired)
    log_warning("storage: remove the directory that {} replaced: {}", placed.name,
                retired.error().message());
  co_return Status();
}

// Finds out that the order was already carried out, by us or by a coordinator that died before it
// could report.
Task<PublishOutcome> find_published(Site site, PublishOrder order) {
  for (std::uint32_t generation = 1; generation <= generations_max; ++generation) {
    const std::string name = step_directory_name(order.at.step, generation);
    const auto manifest = co_await read_manifest(site, name);
    if (!manifest && manifest.error().code() == Errc::not_found) break;
    if (!manifest || (*manifest)->run != order.run || (*manifest)->at != order.at) continue;
    CKPT_CO_TRY(const Checkpoint found, co_await describe_on(site.compute(), *manifest, name));
    if (found.digests != order.digests) continue;
    CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
    PublishOutcome published;
    published.name = name;
    published.bytes = found.bytes;
    published.was_there = true;
    co_return published;
  }
  co_return fail(Errc::not_found, publish_label(order) + ": its work directory " +
                                      os::display(site.at(order.work_name)) + " is gone");
}

}  // namespace

Task<std::string> make_work_directory(Site site, format::StepId at, std::uint64_t attempt) {
  const std::string name = work_directory_name(at, attempt);
  const std::string path = attempt_path(site, name);
  const auto taken = co_await site.files().status(path);
  if (taken) co_return fail(Errc::invalid_argument, "make " + name + ": it exists already");
  if (taken.error().code() != Errc::not_found) co_return fail(taken.error());
  CKPT_CO_CHECK(co_await site.files().make_directory(path));
  CKPT_POINT("flush.open_tmp");
  co_return name;
}

Task<PublishOutcome> publish(Site site, PublishOrder order) {
  const bool has_all_turns = order.turns.empty() || order.turns.size() == order.world_size;
  if (!parse_work_directory(order.work_name) || order.digests.size() != order.world_size ||
      !has_all_turns) {
    co_return fail(Errc::invalid_argument, publish_label(order) + ": the order contradicts itself");
  }
  const auto work = co_await site.files().status(attempt_path(site, order.work_name));
  if (!work && work.error().code() == Errc::not_found) {
    auto found = co_await find_published(site, order);
    co_return found;
  }

  // Steps 1 and 2.
  Collected collected{
      site, order, begin_manifest(site, order), std::vector<Digest>(order.world_size), {}};
  std::function<Task<void>(std::size_t)> collect_one = [&collected](std::size_t rank) {
    return collect(collected, static_cast<std::uint32_t>(rank));
  };
  CKPT_CO_CHECK(
      co_await for_each_parallel(order.world_size, record_reads_in_flight, std::move(collect_one)));
  CKPT_CO_CHECK(co_await compare(collected));

  if (site.objects() != nullptr) {
    auto manifest = std::make_shared<const Manifest>(std::move(collected.manifest));
    CKPT_CO_TRY(PublishOutcome published,
                co_await publish_in_bucket(site, order, std::move(manifest)));
    published.copies = std::move(collected.copies);
    published.layouts = digest_of_layouts(collected.models);
    co_return published;
  }

  // Steps 3 to 5.
  CKPT_CO_CHECK(co_await name_later_turns(collected));
  std::function<Result<std::string>()> make = [&collected] {
    return format::render(collected.manifest);
  };
  CKPT_CO_TRY(std::string text, co_await compute_on(site.compute(), std::move(make)));
  CKPT_CO_CHECK(co_await complete_work_directory(site, order, std::move(text),
                                                 format::file_names(collected.manifest)));

  // Step 6.
  CKPT_POINT("flush.rename.before");
  CKPT_CO_TRY(const Placed placed, co_await put_in_place(site, order));
  CKPT_POINT("flush.rename.after");
  CKPT_ASSERT(!placed.name.empty());

  // Step 7.
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  CKPT_POINT("flush.published");

  // Step 8.
  PublishOutcome published;
  published.name = placed.name;
  published.bytes = describe(collected.manifest, {}).bytes;
  published.copies = std::move(collected.copies);
  published.layouts = digest_of_layouts(collected.models);
  CKPT_CO_CHECK(co_await after_publishing(site, placed, order, published.bytes));
  co_return published;
}

}  // namespace ckpt::storage
