#include "node/stored_place.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "format/doubt.hpp"
#include "os/path.hpp"
#include "storage/damaged_step.hpp"
#include "storage/missing_place.hpp"
#include "storage/retention_record.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::node {

storage::Site StoredPlace::site() const {
  const Seams& seams = facts_.context.seams;
  return storage::Site(seams.files, seams.clock, directory_, seams.compute);
}

Task<bool> StoredPlace::is_missing() {
  CKPT_CO_TRY(const bool is_so, co_await storage::is_missing(site()));
  co_return is_so;
}

void StoredPlace::note_made() {
  const std::time_t now = std::chrono::system_clock::to_time_t(facts_.clock().wall_time());
  made_at_ = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now));
}

std::string StoredPlace::doubt() const {
  std::string why;
  if (!made_at_.empty())
    why = fmt::format("{} did not exist, and was made at {}; ", os::display(directory_), made_at_);
  if (left_ && left_->directory != directory_)
    why += fmt::format("{} {}, with step {}; ", format::job_was_elsewhere,
                       os::display(left_->directory), number(left_->step));
  if (why.empty()) return {};
  return why + "if this training is to go on, check the option dir, and that its disk is mounted";
}

void StoredPlace::set_unusable(std::string why) {
  unusable_ = std::move(why);
  if (!unusable_.empty()) forget();
}

storage::CatalogOptions StoredPlace::catalog_options() {
  storage::CatalogOptions options;
  options.run = run_;
  options.cache = &cache_;
  return options;
}

Task<storage::Catalog> StoredPlace::look() {
  if (!unusable_.empty()) co_return fail(Errc::invalid_argument, unusable_);
  storage::CatalogOptions options = catalog_options();
  options.make_durable = false;
  auto catalog = co_await storage::read_catalog(site(), options);
  co_return catalog;
}

Task<format::Timelines> StoredPlace::load_timelines() {
  auto timelines = co_await storage::load_timelines(site(), run_);
  co_return timelines;
}

Task<storage::Catalog> StoredPlace::load(std::optional<Step> only) {
  if (!unusable_.empty()) co_return fail(Errc::invalid_argument, unusable_);
  storage::CatalogOptions options = catalog_options();
  options.only = only;
  CKPT_CO_TRY(storage::Catalog catalog, co_await storage::read_catalog(site(), options));
  CKPT_CO_CHECK(co_await identify(catalog.rejected));
  co_return catalog;
}

// A restore that passes a damaged step by counts it as lost. `rejected` lives until the Task ends.
Task<void> StoredPlace::identify(std::vector<storage::Rejected>& rejected) {
  for (storage::Rejected& one : rejected) {
    if (one.at) continue;
    const auto known = std::ranges::find(rejected_, one.name, &storage::Rejected::name);
    if (known != rejected_.end() && known->reason == one.reason) {
      one.at = known->at;
      continue;
    }
    storage::Rejected asked = one;
    CKPT_CO_TRY(one.at, co_await storage::step_of_parts(site(), std::move(asked), run_));
  }
  co_return Status();
}

void StoredPlace::adopt(storage::Catalog catalog, GoneSteps::Listing listing) {
  checkpoints_ = std::move(catalog.checkpoints);
  gone_.remember(checkpoints_, listing);
  note_rejected(std::move(catalog.rejected));
}

asio::awaitable<void> StoredPlace::look_for_newest() {
  const std::optional<format::StepId> newest = gone_.newest();
  if (!newest) co_return;
  if (const std::string name = name_of(*newest); !name.empty()) {
    const auto is_there = co_await storage::has_manifest(site(), name);
    if (!is_there || *is_there) co_return;  // A disk that fails does not say that it is gone.
  }
  const GoneSteps::Listing listing = begin_listing();
  const auto catalog = co_await load(std::nullopt);
  if (catalog) look_for_gone(*catalog, listing);
}

void StoredPlace::note_rejected(std::vector<storage::Rejected> rejected) {
  for (const storage::Rejected& one : rejected) {
    // The catalog is read again after every save; each problem is logged once.
    const bool is_known =
        std::any_of(rejected_.begin(), rejected_.end(), [&](const storage::Rejected& known) {
          return known.name == one.name && known.reason == one.reason;
        });
    if (is_known) continue;
    log_warning("job={} {} is not used: {}", facts_.shape.job, one.name, one.reason);
  }
  rejected_ = std::move(rejected);
}

Task<void> StoredPlace::look_up(format::StepId at) {
  CKPT_CO_TRY(storage::Catalog catalog, co_await load(at.step));
  std::erase_if(checkpoints_,
                [&](const storage::Checkpoint& known) { return known.at.step == at.step; });
  for (storage::Checkpoint& found : catalog.checkpoints) {
    std::erase_if(rejected_, [&](const auto& known) { return known.name == found.name; });
    checkpoints_.push_back(std::move(found));
  }
  for (const storage::Rejected& rejected : catalog.rejected)
    log_warning("job={} {} is not used: {}", facts_.shape.job, rejected.name, rejected.reason);
  co_return Status{};
}

asio::awaitable<void> StoredPlace::record_retention(storage::RetentionRule rule) {
  if (recorded_ == rule) co_return;
  recorded_ = rule;  // Where it fails, the next change, or the next daemon, tries again.
  storage::RetentionRecord record;
  record.run = facts_.shape.run;
  record.rule = std::move(rule);
  record.attempt = facts_.context.random.next();
  const Status recorded = co_await storage::record_retention(site(), std::move(record));
  if (!recorded) {
    log_warning("job={} what it keeps in {} is not recorded for `ckpt gc`: {}", facts_.shape.job,
                directory_, recorded.error().message());
  }
}

std::vector<std::string> StoredPlace::troubles(Time now) const {
  std::vector<std::string> all;
  for (const std::string& each : {storage::silence_of(site()), unreadable(), gone_.trouble(now)})
    if (!each.empty()) all.push_back(each);
  return all;
}

std::string StoredPlace::unreadable() const {
  std::size_t count = 0;
  const storage::Rejected* newest = nullptr;
  for (const storage::Rejected& rejected : rejected_) {
    if (!storage::is_unreadable(rejected)) continue;
    ++count;
    if (newest == nullptr || rejected.name > newest->name) newest = &rejected;
  }
  if (count == 0) return {};
  return fmt::format("{} in {} cannot be read and is kept{}: {}", newest->name, directory_,
                     count == 1 ? "" : fmt::format(", as are {} more", count - 1), newest->reason);
}

std::string StoredPlace::name_of(format::StepId at) const {
  const auto found = std::ranges::find(checkpoints_, at, &storage::Checkpoint::at);
  return found == checkpoints_.end() ? std::string() : found->name;
}

std::string StoredPlace::damaged_name_of(format::StepId at) const {
  for (const storage::Rejected& rejected : rejected_) {
    if (storage::step_of(rejected) == at.step && storage::is_damage(rejected)) return rejected.name;
  }
  return {};
}

}  // namespace ckpt::node
