// How a step is published:
//   1. The part of every rank is read. It must be the record that the rank reported.
//   2. The files of every rank must exist with their sizes.
//   3. Files of a later turn are renamed over any that an earlier writer left. If that writer has
//   the file open, it loses its name; if it wants to create it later, it fails, since the name
//   exists. Then the manifest is written and synced.
//   4. The parts are removed, since the manifest holds their content. So are files of other turns.
//   5. The work directory is synced.
//   6. It is renamed to the step's name, or exchanged with a directory of that name.
//   7. The parent is synced. The step is DURABLE.
//   8. The save is logged, `latest` is replaced, and an exchanged directory is removed. Failures
//   here are logged and change nothing.
#include "storage/publish.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/parallel.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using format::Manifest;
using format::ShardPart;

// Parts and sizes are small reads, and on a network file system each is a round trip.
constexpr std::size_t reads_in_flight = 16;
constexpr std::uint64_t part_bytes_max = format::manifest_bytes_max;

std::string label(const PublishOrder& order) {
  return fmt::format("publish step {}", number(order.at.step));
}

// The results of steps 1 and 2; lives in publish's frame.
struct Collected {
  Site site;
  PublishOrder order;
  std::vector<ShardPart> parts;  // By rank.
  std::uint64_t created_unix_seconds = 0;
};

Status check_part(const PublishOrder& order, const ShardPart& part, std::uint32_t rank) {
  const format::ShardRecord& record = part.record;
  if (record.id.rank != rank || record.id.at != order.at || record.run != order.run ||
      record.world_size != order.world_size || record.job != order.job) {
    return fail(Errc::corruption, fmt::format("{}: the part of rank {} is of another step or run",
                                              label(order), rank));
  }
  if (format::digest_of(record) != order.digests[rank]) {
    return fail(Errc::corruption, fmt::format("{}: the part of rank {} is not the one it reported",
                                              label(order), rank));
  }
  return {};
}

// Steps 1 and 2, for one rank.
Task<void> collect(Collected& collected, std::uint32_t rank) {
  const Site& site = collected.site;
  const PublishOrder& order = collected.order;
  const std::string directory = site.at(order.work_name);
  const std::uint32_t turn = order.turn_of(rank);
  const std::string path = os::join(directory, turn_name(format::part_name(rank), turn));
  auto bytes = co_await site.files().read_small(path, part_bytes_max);
  if (!bytes && bytes.error().code() == Errc::not_found) {
    co_return fail(Errc::not_found,
                   fmt::format("{}: the shard of rank {} is not in {}: is {} one directory that "
                               "all nodes share?",
                               label(order), rank, os::display(directory), site.directory()));
  }
  if (!bytes) co_return fail(bytes.error());
  std::function<Result<ShardPart>()> decode = [&]() -> Result<ShardPart> {
    CKPT_TRY(ShardPart decoded, format::decode_shard_part(*bytes));
    CKPT_CHECK(check_part(order, decoded, rank));
    return decoded;
  };
  auto part = co_await compute_on(site.compute(), std::move(decode));
  if (!part) co_return fail(std::move(part).error().context("read " + os::display(path)));
  const auto extents = format::member_extents(part->record);
  for (std::size_t index = 0; index < extents.size(); ++index) {
    const std::string& name = part->record.layout.members[index].file_name;
    const std::string file = os::join(directory, turn_name(name, turn));
    CKPT_CO_TRY(const auto status, co_await site.files().status(file));
    if (status.kind == os::EntryKind::file && status.bytes == extents[index].bytes) continue;
    co_return fail(Errc::corruption,
                   fmt::format("{}: {} has {} bytes, its part says {}", label(order),
                               os::display(file), status.bytes, extents[index].bytes));
  }
  collected.parts[rank] = std::move(part).value();
  co_return Status();
}

struct Rendered {
  std::string text;
  std::uint64_t bytes = 0;  // The sum over all files but the manifest.
};

Result<Rendered> make_manifest(Collected& collected) {
  CKPT_TRY(Manifest manifest, format::merge(std::move(collected.parts)));
  manifest.created_unix_seconds = collected.created_unix_seconds;
  manifest.members = collected.order.members;
  manifest.nodes = collected.order.nodes;
  Rendered rendered;
  CKPT_TRY(rendered.text, format::render(manifest));
  rendered.bytes = describe(manifest, {}).bytes;
  return rendered;
}

// Step 3, for files of later turns.
Task<void> name_later_turns(Site site, PublishOrder order,
                            std::span<const format::ShardPart> parts) {
  const std::string directory = site.at(order.work_name);
  for (const ShardPart& part : parts) {
    const std::uint32_t turn = order.turn_of(part.record.id.rank);
    if (turn == 0) continue;
    for (const format::Member& member : part.record.layout.members) {
      const std::string from = os::join(directory, turn_name(member.file_name, turn));
      const std::string to = os::join(directory, member.file_name);
      CKPT_CO_CHECK(co_await site.files().rename(from, to, os::RenameMode::replace));
    }
  }
  co_return Status();
}

// Step 4, if a part had several writers.
Task<void> remove_leftovers(Site site, std::string directory) {
  CKPT_CO_TRY(const auto entries, co_await site.files().list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const std::string_view stem = without_turn(entry.name);
    const bool is_part = format::is_part_name(stem);
    const bool is_of_a_turn = stem != entry.name && format::is_member_name(stem);
    if (entry.kind != os::EntryKind::file || (!is_part && !is_of_a_turn)) continue;
    const std::string path = os::join(directory, entry.name);
    Status removed = co_await site.files().remove_file(path);
    if (!removed && removed.error().code() != Errc::not_found) co_return removed;
  }
  co_return Status();
}

// Steps 3 to 5.
Task<void> complete_work_directory(Site site, PublishOrder order, std::string text) {
  const std::string directory = site.at(order.work_name);
  const auto bytes = std::as_bytes(std::span(text));
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  CKPT_POINT("manifest.before");
  const std::string path = os::join(directory, format::manifest_name);
  CKPT_CO_CHECK(co_await site.files().write_small(path, std::move(copy)));
  CKPT_POINT("manifest.fsync");
  for (std::uint32_t rank = 0; rank < order.world_size; ++rank) {
    const std::string part = turn_name(format::part_name(rank), order.turn_of(rank));
    const std::string path_of_part = os::join(directory, part);
    CKPT_CO_CHECK(co_await site.files().remove_file(path_of_part));
  }
  if (!order.turns.empty()) {
    CKPT_CO_CHECK(co_await remove_leftovers(site, directory));
  }
  CKPT_POINT("flush.dirsync.before");
  CKPT_CO_CHECK(co_await site.files().sync_directory(directory));
  CKPT_POINT("flush.dirsync.after");
  co_return Status();
}

struct Placed {
  std::string name;
  std::string exchanged;            // Hidden name of the directory that was replaced; empty: none.
  std::vector<std::string> others;  // Other generations of this step and run, none newer.
};

// Returns false if the file system has no exchange.
Task<bool> exchange(Site site, std::string work_name, std::string name) {
  constexpr auto mode = os::RenameMode::exchange;
  Status done = co_await site.files().rename(site.at(work_name), site.at(name), mode);
  if (done) co_return true;
  if (done.error().code() == Errc::unsupported) co_return false;
  co_return fail(done.error());
}

bool is_unreadable(const Error& error) {
  return error.code() == Errc::io || error.code() == Errc::exhausted ||
         error.code() == Errc::cancelled;
}

// The directories of this step that are certainly of this run, by generation.
Task<std::vector<std::string>> find_generations(Site site, PublishOrder order) {
  std::vector<std::string> names;
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = parse_step_directory(entry.name);
    if (!parsed || parsed->step != order.at.step) continue;
    const auto manifest = co_await read_manifest(site, entry.name);
    if (!manifest && is_unreadable(manifest.error())) co_return fail(manifest.error());
    if (!manifest || (*manifest)->run != order.run) continue;
    if ((*manifest)->at.timeline > order.at.timeline) {
      co_return fail(Errc::invalid_argument,
                     fmt::format("{} of timeline {}: timeline {} has published it already",
                                 label(order), order.at.timeline, (*manifest)->at.timeline));
    }
    names.push_back(entry.name);
  }
  co_return names;
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
    if (renamed) co_return placed;
    if (renamed.error().cause() != std::errc::file_exists) co_return fail(renamed.error());
    if (std::erase(placed.others, placed.name) == 0) continue;
    CKPT_CO_TRY(const bool exchanged, co_await exchange(site, order.work_name, placed.name));
    if (exchanged) {
      placed.exchanged = order.work_name;
      co_return placed;
    }
    placed.others.push_back(placed.name);
  }
  co_return fail(Errc::exhausted,
                 fmt::format("{}: all {} names of it are taken", label(order), generations_max));
}

// Only a hint for people and for tools that follow it; recovery reads manifests.
Task<void> point_latest(Site site, std::string name, std::uint64_t attempt) {
  const std::string text = name + "\n";
  const std::string aside = aside_name("." + std::string(latest_name), attempt);
  CKPT_POINT("latest.before");
  CKPT_CO_CHECK(co_await replace_file(site, std::string(latest_name), text, aside));
  CKPT_POINT("latest.after");
  co_return Status();
}

Task<void> retire(Site site, Placed placed, PublishOrder order) {
  const std::string reason =
      fmt::format("saved again as {} of timeline {}", placed.name, order.at.timeline);
  if (!placed.exchanged.empty()) {
    CKPT_CO_CHECK(co_await discard_work_directory(site, placed.exchanged, reason));
  }
  for (const std::string& other : placed.others) {
    CKPT_CO_CHECK(co_await remove_checkpoint(site, other, order.run, reason));
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
  const Status logged = co_await record_event(site, std::move(event));
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
Task<PublishedStep> find_published(Site site, PublishOrder order) {
  for (std::uint32_t generation = 1; generation <= generations_max; ++generation) {
    const std::string name = step_directory_name(order.at.step, generation);
    const auto manifest = co_await read_manifest(site, name);
    if (!manifest && manifest.error().code() == Errc::not_found) break;
    if (!manifest || (*manifest)->run != order.run || (*manifest)->at != order.at) continue;
    CKPT_CO_TRY(const Checkpoint found, co_await describe_on(site.compute(), *manifest, name));
    if (found.digests != order.digests) continue;
    CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
    PublishedStep published;
    published.name = name;
    published.bytes = found.bytes;
    published.was_there = true;
    co_return published;
  }
  co_return fail(Errc::not_found, label(order) + ": its work directory " +
                                      os::display(site.at(order.work_name)) + " is gone");
}

}  // namespace

Task<std::string> make_work_directory(Site site, format::StepId at, std::uint64_t attempt) {
  const std::string name = work_directory_name(at, attempt);
  const auto taken = co_await site.files().status(site.at(name));
  if (taken) co_return fail(Errc::invalid_argument, "make " + name + ": it exists already");
  if (taken.error().code() != Errc::not_found) co_return fail(taken.error());
  CKPT_CO_CHECK(co_await site.files().make_directory(site.at(name)));
  CKPT_POINT("flush.open_tmp");
  co_return name;
}

Task<PublishedStep> publish(Site site, PublishOrder order) {
  const bool has_all_turns = order.turns.empty() || order.turns.size() == order.world_size;
  if (!parse_work_directory(order.work_name) || order.digests.size() != order.world_size ||
      !has_all_turns) {
    co_return fail(Errc::invalid_argument, label(order) + ": the order contradicts itself");
  }
  const auto work = co_await site.files().status(site.at(order.work_name));
  if (!work && work.error().code() == Errc::not_found) {
    auto found = co_await find_published(site, order);
    co_return found;
  }

  // Steps 1 and 2.
  Collected collected{site, order, {}, 0};
  collected.parts.resize(order.world_size);
  std::function<Task<void>(std::size_t)> collect_one = [&collected](std::size_t rank) {
    return collect(collected, static_cast<std::uint32_t>(rank));
  };
  CKPT_CO_CHECK(
      co_await for_each_parallel(order.world_size, reads_in_flight, std::move(collect_one)));

  // Steps 3 to 5.
  const std::span<const ShardPart> parts(collected.parts);
  CKPT_CO_CHECK(co_await name_later_turns(site, order, parts));
  const auto now = site.clock().wall_time().time_since_epoch();
  collected.created_unix_seconds =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  std::function<Result<Rendered>()> make = [&collected] { return make_manifest(collected); };
  CKPT_CO_TRY(Rendered rendered, co_await compute_on(site.compute(), std::move(make)));
  CKPT_CO_CHECK(co_await complete_work_directory(site, order, std::move(rendered.text)));

  // Step 6.
  CKPT_POINT("flush.rename.before");
  CKPT_CO_TRY(const Placed placed, co_await put_in_place(site, order));
  CKPT_POINT("flush.rename.after");
  CKPT_ASSERT(!placed.name.empty());

  // Step 7.
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  CKPT_POINT("flush.published");

  // Step 8.
  PublishedStep published;
  published.name = placed.name;
  published.bytes = rendered.bytes;
  CKPT_CO_CHECK(co_await after_publishing(site, placed, order, published.bytes));
  co_return published;
}

}  // namespace ckpt::storage
