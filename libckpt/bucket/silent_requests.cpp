#include "bucket/silent_requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::bucket {

namespace {

// A flush has as many requests under way as it has parts.
constexpr std::size_t failed_max = 32;

bool is_below(std::string_view place, std::string_view root) {
  return place.starts_with(root) && (place.size() == root.size() || place[root.size()] == '/');
}

}  // namespace

std::uint64_t SilentRequests::begin(std::string place, Time began) {
  const std::lock_guard lock(mutex_);
  requests_[next_id_] = {std::move(place), began, {}, {}};
  return next_id_++;
}

void SilentRequests::note(std::uint64_t id, std::string trouble, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  CKPT_ASSERT(found != requests_.end());
  found->second.trouble = std::move(trouble);
  found->second.noted = now;
}

void SilentRequests::answered(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  requests_.at(id).trouble.clear();
  failed_.clear();
  silent_since_.reset();
}

void SilentRequests::end(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  auto ended = requests_.extract(id);
  if (ended.mapped().trouble.empty()) return;
  silent_since_ = std::min(silent_since_.value_or(ended.mapped().began), ended.mapped().began);
  failed_.insert(std::move(ended));
  if (failed_.size() > failed_max) failed_.erase(failed_.begin());
}

void SilentRequests::forget_old(Time now) {
  std::erase_if(failed_,
                [now](const auto& failed) { return now - failed.second.noted >= kept_for; });
  if (failed_.empty()) silent_since_.reset();
}

std::string SilentRequests::in_words(const State& request, Time now) const {
  const Duration waited = now - std::min(request.began, silent_since_.value_or(request.began));
  if (request.trouble.empty() || waited < told_after) return {};
  // The text changes now and then, and not each second.
  const auto times = waited / told_after;
  return fmt::format("{}, for {} s", request.trouble,
                     times * (told_after / std::chrono::seconds(1)));
}

std::string SilentRequests::describe(std::string_view place, Time now) {
  const std::lock_guard lock(mutex_);
  forget_old(now);
  std::string text;
  for (const State& request : requests_ | std::views::values) {
    if (text.empty() && is_below(request.place, place)) text = in_words(request, now);
  }
  for (const State& failed : failed_ | std::views::values | std::views::reverse) {
    if (text.empty() && is_below(failed.place, place)) text = in_words(failed, now);
  }
  return text;
}

}  // namespace ckpt::bucket
