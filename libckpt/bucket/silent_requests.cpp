#include "bucket/silent_requests.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/assert.hpp"

namespace ckpt::bucket {

std::uint64_t SilentRequests::begin(Time began) {
  const std::lock_guard lock(mutex_);
  requests_[next_id_].began = began;
  return next_id_++;
}

void SilentRequests::note(std::uint64_t id, std::string trouble) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  CKPT_ASSERT(found != requests_.end());
  found->second.trouble = std::move(trouble);
}

void SilentRequests::end(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  requests_.erase(id);
}

std::string SilentRequests::describe(Time now) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, request] : requests_) {
    const Duration waited = now - request.began;
    if (request.trouble.empty() || waited < told_after) continue;
    // The text changes now and then, and not each second.
    const auto times = waited / told_after;
    return fmt::format("{}, for {} s", request.trouble,
                       times * (told_after / std::chrono::seconds(1)));
  }
  return {};
}

}  // namespace ckpt::bucket
