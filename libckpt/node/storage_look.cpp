#include "node/storage_look.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "os/path.hpp"

namespace ckpt::node {

namespace {

// It is used by the question for which it was made.
constexpr Duration recent_for = std::chrono::seconds(1);

}  // namespace

std::string StorageSeen::trouble() const {
  std::string all;
  for (const Place& place : places) {
    if (place.trouble.empty()) continue;
    all += fmt::format("{}{} was not reached: {}", all.empty() ? "" : "; ",
                       os::display(place.directory), place.trouble);
  }
  return all;
}

std::optional<format::StepId> StorageSeen::newest() const {
  std::optional<format::StepId> newest;
  for (const Place& place : places) newest = std::max(newest, place.newest);
  return newest;
}

// A step that lies in both places is one step.
void StorageSeen::add(const storage::Catalog& catalog, Place& place) {
  damaged += static_cast<std::size_t>(std::ranges::count_if(catalog.rejected, storage::is_damage));
  misplaced += static_cast<std::size_t>(
      std::ranges::count_if(catalog.rejected, &storage::Rejected::is_misplaced));
  for (const storage::Checkpoint& found : catalog.checkpoints) {
    if (!agree::is_fenced(history, found.at))
      place.newest = std::max(place.newest, std::optional(found.at));
    if (std::ranges::find(published, found.at, &agree::PublishedStep::at) == published.end())
      published.push_back({found.at, found.world_size, found.digests});
  }
}

void StorageLook::begin() {
  looks_.resize(places_.size());
  durable_before_ = facts_.durable;
  for (std::size_t index = 0; index < looks_.size(); ++index) {
    if (!std::exchange(looks_[index].is_under_way, true)) facts_.context.spawn(run(index));
  }
}

asio::awaitable<void> StorageLook::run(std::size_t index) {
  const std::shared_ptr<void> held = life_.hold();
  auto found = co_await read(index);
  looks_[index].found = std::move(found);
  looks_[index].is_under_way = false;
  ended_.notify_all();
}

Task<StorageLook::Contents> StorageLook::read(std::size_t index) {
  Contents contents;
  CKPT_CO_TRY(contents.timelines, co_await places_[index].load_timelines());
  auto catalog = co_await places_[index].look();
  // Somebody has removed the directory: nothing is there.
  if (!catalog && catalog.error().code() == Errc::not_found) catalog = storage::Catalog();
  if (!catalog) co_return fail(std::move(catalog).error());
  contents.catalog = std::move(*catalog);
  co_return contents;
}

Task<void> StorageLook::wait(Time deadline) {
  while (is_under_way()) {
    CKPT_CO_TRY(const bool is_notified, co_await ended_.wait_until(deadline));
    if (!is_notified) break;
  }
  seen_at_ = facts_.clock().now();
  co_return Status{};
}

std::optional<StorageSeen> StorageLook::just_seen() const {
  if (!seen_at_ || looks_.empty() || facts_.clock().now() - *seen_at_ > recent_for)
    return std::nullopt;
  StorageSeen seen;
  seen.history = facts_.history;
  seen.durable_before = durable_before_;
  for (const Look& look : looks_) {
    if (!look.is_under_way && look.found)
      seen.history = agree::merge(seen.history, look.found->timelines.history);
  }
  for (std::size_t index = 0; index < looks_.size(); ++index) {
    const Look& look = looks_[index];
    StorageSeen::Place& place = seen.places.emplace_back();
    place.directory = places_[index].directory();
    if (look.is_under_way) place.trouble = "it does not answer";
    if (!look.is_under_way && !look.found) place.trouble = look.found.error().message();
    if (!place.trouble.empty()) continue;
    seen.add(look.found->catalog, place);
  }
  return seen;
}

}  // namespace ckpt::node
