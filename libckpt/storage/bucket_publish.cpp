// How a step is published in a bucket:
//   1. The manifest that the step has by now is read. It must be of this run, and of no later
//   timeline. One of the same timeline must be of the same bytes.
//   2. The attempt's files must be there with their sizes, and not be marked as discarded.
//   3. The manifest is put: if there was none, under the condition that there still is none; else,
//   in the place of the one that was read and no other.
//   4. Step 2 again. If the attempt was discarded meanwhile, the manifest is taken back. If nobody
//   answers, it stays, and the step is not reported. Else the step is DURABLE.
//   5. The save is logged, `latest` is put, and an attempt that was replaced is discarded. Failures
//   here are logged and change nothing.
#include "storage/bucket_publish.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_removal.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/text_bytes.hpp"

namespace ckpt::storage {

namespace {

using format::Manifest;

// The manifest that a step has by now.
struct Standing {
  os::TaggedBytes stored;
  Manifest manifest;
};

Task<std::optional<Standing>> read_standing(Site site, std::string path) {
  auto stored = co_await site.objects()->read_tagged(path, format::manifest_bytes_max);
  if (!stored && stored.error().code() == Errc::not_found) co_return std::optional<Standing>();
  if (!stored) co_return fail(std::move(stored).error());
  Standing standing;
  standing.stored = std::move(*stored);
  const auto& bytes = standing.stored.bytes;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::function<Result<Manifest>()> parse = [text] { return format::parse_manifest(text); };
  auto manifest = co_await compute_on(site.compute(), std::move(parse));
  if (!manifest) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("{} is in the way and cannot be read ({}): move it away",
                               os::display(path), manifest.error().text()));
  }
  standing.manifest = std::move(*manifest);
  co_return std::optional<Standing>(std::move(standing));
}

bool is_of_same_bytes(const Manifest& left, const Manifest& right) {
  const auto has_same = [](const format::ManifestShard& a, const format::ManifestShard& b) {
    return a.record_digest == b.record_digest;
  };
  return std::ranges::equal(left.shards, right.shards, has_same);
}

bool is_same_attempt(const Manifest& left, const Manifest& right) {
  const auto has_same = [](const format::ManifestShard& a, const format::ManifestShard& b) {
    return a.folder == b.folder;
  };
  return left.at == right.at && std::ranges::equal(left.shards, right.shards, has_same);
}

// Step 1.
Status check_standing(const PublishOrder& order, const Manifest& ours, const Manifest& standing) {
  if (standing.run != ours.run) {
    return fail(Errc::invalid_argument, fmt::format("{}: a step of job {} is in its place",
                                                    publish_label(order), standing.job));
  }
  if (standing.at.timeline > ours.at.timeline) {
    return fail(Errc::invalid_argument,
                fmt::format("{} of timeline {}: timeline {} has published it already",
                            publish_label(order), ours.at.timeline, standing.at.timeline));
  }
  if (standing.at == ours.at && !is_of_same_bytes(standing, ours)) {
    return fail(Errc::invalid_argument,
                fmt::format("{} of timeline {}: another daemon has published other bytes of it",
                            publish_label(order), ours.at.timeline));
  }
  return {};
}

// Steps 2 and 4.
Task<void> check_attempt(Site site, PublishOrder order, std::shared_ptr<const Manifest> manifest) {
  const std::string directory = site.at(step_directory_name(order.at.step));
  const std::string folder = attempt_folder(parse_work_directory(order.work_name).value());
  CKPT_CO_TRY(const auto entries, co_await site.objects()->list_below(os::join(directory, folder)));
  std::map<std::string, std::uint64_t> there;
  for (const os::ObjectEntry& entry : entries)
    there.emplace(folder + "/" + entry.name, entry.bytes);
  if (there.contains(folder + "/" + std::string(discarded_name))) {
    co_return fail(Errc::corruption,
                   fmt::format("{}: another daemon has discarded its files", publish_label(order)));
  }
  const auto has = [&](const std::string& name, std::uint64_t bytes) {
    const auto found = there.find(name);
    return found != there.end() && found->second == bytes;
  };
  for (const format::ManifestShard& shard : manifest->shards) {
    bool is_whole = has(shard.folder + "/" + format::part_name(shard.rank), shard.part.bytes);
    for (const format::StoredFile& file : shard.files)
      is_whole = is_whole && has(shard.folder + "/" + file.name, file.bytes);
    if (!is_whole) {
      co_return fail(Errc::corruption, fmt::format("{}: files of rank {} are not in {} any more",
                                                   publish_label(order), shard.rank,
                                                   os::display(os::join(directory, folder))));
    }
  }
  co_return Status();
}

// Undoes step 3, unless somebody has replaced it meanwhile.
Task<void> take_back(Site site, std::string path, std::vector<std::byte> ours,
                     std::optional<Standing> before) {
  CKPT_ASSERT(!ours.empty());
  CKPT_CO_TRY(const os::TaggedBytes now,
              co_await site.objects()->read_tagged(path, format::manifest_bytes_max));
  if (now.bytes != ours) co_return Status();
  if (before) {
    const os::PutCondition unchanged(os::PutMode::if_unchanged, now.tag);
    Status put = co_await site.objects()->put_small(path, before->stored.bytes, unchanged);
    co_return put;
  }
  Status removed = co_await site.files().remove_file(path);
  co_return removed;
}

// Step 5.
Task<void> announce(Site site, PublishOrder order, PublishOutcome published) {
  Event event;
  event.operation = "save";
  event.path = published.name;
  event.at = order.at;
  event.bytes = published.bytes;
  event.reason = "published";
  const Status logged = co_await record_event(site, std::move(event));
  if (!logged) log_warning("storage: {}", logged.error().message());
  CKPT_POINT("latest.before");
  const os::PutCondition replace(os::PutMode::replace);
  const Status pointed = co_await site.objects()->put_small(
      site.at(latest_name), bytes_of_text(published.name + "\n"), replace);
  CKPT_POINT("latest.after");
  if (!pointed) log_warning("storage: update `latest`: {}", pointed.error().message());
  co_return Status();
}

// Step 5.
Task<void> discard_replaced(Site site, PublishOrder order, std::string name,
                            const Standing& before) {
  CKPT_ASSERT(before.manifest.at.timeline <= order.at.timeline);
  std::set<std::string> replaced;
  for (const format::ManifestShard& shard : before.manifest.shards) {
    const auto work = parse_attempt_folder(before.manifest.at.step,
                                           shard.folder.substr(0, shard.folder.find('/')));
    if (work) replaced.insert(work_directory_name(work->at, work->attempt));
  }
  for (const std::string& work_name : replaced) {
    const auto discarded = co_await discard_attempt(
        site, work_name, fmt::format("saved again in timeline {}", order.at.timeline));
    if (!discarded)
      log_warning("storage: remove what {} replaced: {}", name, discarded.error().message());
  }
  co_return Status();
}

}  // namespace

Task<PublishOutcome> publish_in_bucket(Site site, PublishOrder order,
                                       std::shared_ptr<const Manifest> manifest) {
  CKPT_ASSERT(site.objects() != nullptr);
  CKPT_ASSERT(manifest->at == order.at);
  PublishOutcome published;
  published.name = step_directory_name(order.at.step);
  published.bytes = describe(*manifest, {}).bytes;
  const std::string path = os::join(site.at(published.name), format::manifest_name);

  // Step 1.
  CKPT_CO_TRY(auto before, co_await read_standing(site, path));
  if (before) {
    CKPT_CO_CHECK(check_standing(order, *manifest, before->manifest));
    CKPT_ASSERT(before->manifest.run == manifest->run);
    CKPT_ASSERT(before->manifest.at.timeline <= manifest->at.timeline);  // The newest one stands.
    published.was_there = is_same_attempt(*manifest, before->manifest);
  }

  // Step 2.
  CKPT_CO_CHECK(co_await check_attempt(site, order, manifest));
  if (published.was_there) co_return published;

  // Step 3.
  std::function<Result<std::string>()> make = [manifest] { return format::render(*manifest); };
  CKPT_CO_TRY(const std::string text, co_await compute_on(site.compute(), std::move(make)));
  os::PutCondition condition(os::PutMode::if_absent);
  if (before) condition = os::PutCondition(os::PutMode::if_unchanged, before->stored.tag);
  CKPT_POINT("manifest.before");
  Status put = co_await site.objects()->put_small(path, bytes_of_text(text), condition);
  if (!put && put.error().cause() == std::errc::file_exists) {
    co_return fail(Errc::invalid_argument,
                   publish_label(order) + ": another daemon has published it at the same time");
  }
  if (!put) co_return fail(std::move(put).error().context(publish_label(order)));
  CKPT_POINT("flush.rename.after");

  // Step 4.
  Status whole = co_await check_attempt(site, order, manifest);
  if (!whole) {
    // When nobody answers, it may be whole: it stays, and the next catalog shows it.
    Status undone;
    if (whole.error().code() == Errc::corruption)
      undone = co_await take_back(site, path, bytes_of_text(text), std::move(before));
    if (!undone) log_warning("storage: take back {}: {}", published.name, undone.error().message());
    co_return fail(std::move(whole).error());
  }
  CKPT_POINT("flush.published");

  // Step 5.
  if (!order.is_copy) CKPT_CO_CHECK(co_await announce(site, order, published));
  if (before) CKPT_CO_CHECK(co_await discard_replaced(site, order, published.name, *before));
  co_return published;
}

}  // namespace ckpt::storage
