#include "node/gone_steps.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/path.hpp"

namespace ckpt::node {

namespace {

// A person, or a loop that asks for the status now and then, sees it in this time.
constexpr Duration trouble_time = std::chrono::minutes(1);

// Also if it is unread or damaged, or if a step of another timeline has replaced it.
bool is_there(const storage::Catalog& catalog, Step step) {
  const auto is_it = [&](const storage::Rejected& rejected) {
    return storage::step_of(rejected) == step;
  };
  return std::ranges::any_of(catalog.rejected, is_it) ||
         std::ranges::any_of(catalog.checkpoints, [&](const storage::Checkpoint& checkpoint) {
           return checkpoint.at.step == step;
         });
}

}  // namespace

bool GoneSteps::is_newer_there(const storage::Catalog& catalog) const {
  CKPT_ASSERT(newest_.has_value());
  return std::ranges::any_of(catalog.checkpoints, [&](const storage::Checkpoint& checkpoint) {
    return checkpoint.at > *newest_ && !facts_.is_fenced(checkpoint.at);
  });
}

void GoneSteps::forget() {
  known_ = begun_;
  newest_.reset();
}

void GoneSteps::remember(const std::vector<storage::Checkpoint>& checkpoints, Listing listing) {
  if (listing <= known_) return;
  known_ = listing;
  newest_.reset();
  for (const storage::Checkpoint& checkpoint : checkpoints)
    newest_ = std::max(newest_, std::optional(checkpoint.at));
  older_ = newest_ ? checkpoints.size() - 1 : 0;
}

void GoneSteps::look(const storage::Catalog& catalog, Listing listing,
                     const std::string& directory) {
  if (listing <= known_) return;
  const bool is_gone = newest_ && !facts_.is_fenced(*newest_) &&
                       !is_there(catalog, newest_->step) && !is_newer_there(catalog);
  if (!is_gone) return;
  const auto left = static_cast<std::size_t>(std::ranges::count_if(
      catalog.checkpoints,
      [&](const storage::Checkpoint& checkpoint) { return checkpoint.at < *newest_; }));
  const std::size_t older = older_ > left ? older_ - left : 0;
  const std::time_t now = std::chrono::system_clock::to_time_t(facts_.clock().wall_time());
  text_ = fmt::format(
      "step {}{} in {}, and not there any more, noticed at {:%Y-%m-%d %H:%M:%S} "
      "UTC: somebody has removed or moved {}; new steps go there, into a "
      "directory that is made again where it is gone",
      number(newest_->step), older == 0 ? " was" : fmt::format(" and {} more were", older),
      os::display(directory), fmt::gmtime(now), older == 0 ? "it" : "them");
  if (left > 0)
    text_ += fmt::format(
        "; if a backup was put there to go on from it: a restore takes newer steps in memory "
        "first, so end the trainers, run `ckpt drop {}`, and start them again",
        facts_.shape.job);
  noticed_at_ = facts_.clock().now();
  durable_then_ = facts_.durable;
  newest_.reset();
  log_warning("job={} {}", facts_.shape.job, text_);
}

std::string GoneSteps::trouble(Time now) const {
  const bool is_newer_stored = facts_.durable != durable_then_;
  if (is_newer_stored && now - noticed_at_ >= trouble_time) return {};
  return text_;
}

}  // namespace ckpt::node
