#include "node/coverage_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "gather/look_through.hpp"
#include "storage/last_whole.hpp"

namespace ckpt::node {

namespace {

bool are_equal(const gather::Missing& one, const gather::Missing& other) {
  return one.tensors == other.tensors && one.tensor == other.tensor && one.what == other.what &&
         one.contradiction == other.contradiction;
}

}  // namespace

void CoverageCheck::forget() {
  newest_.reset();
  missing_ = {};
  kept_.reset();
}

void CoverageCheck::update(bool is_coordinator) {
  if (!is_coordinator) return forget();
  if (!facts_.durable || facts_.directory.empty() || newest_ == facts_.durable) return;
  const format::StepId at = *facts_.durable;
  if (known_.contains(at)) return show(at);
  if (!is_wanted(at)) return;
  begin_look(at);
  facts_.context.spawn(run(at));
}

void CoverageCheck::update_held(format::StepId at, const Describe& describe) {
  if (newest_ == at) return;
  if (known_.contains(at)) return show(at);
  if (!is_wanted(at)) return;
  std::optional<HeldStep> step = describe();
  if (!step) return;
  published(at, step->layouts);
  if (known_.contains(at)) return show(at);
  begin_look(at);
  facts_.context.spawn(run_held(at, std::move(step->open)));
}

// Each step once, and one at a time.
bool CoverageCheck::is_wanted(format::StepId at) {
  // A step that was restored was whole for its readers.
  const auto& start = facts_.decree.start;
  const bool is_restored = !start || at.timeline != start->timeline;
  if (is_restored) forget();
  return !is_restored && !is_looking_ && tried_ != at;
}

void CoverageCheck::begin_look(format::StepId at) {
  tried_ = at;
  is_looking_ = true;
}

asio::awaitable<void> CoverageCheck::run(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Status looked = co_await look_in_places(at);
  ended(at, looked);
}

asio::awaitable<void> CoverageCheck::run_held(format::StepId at, OpenShards open) {
  const JobLife::WorkPass work = life_.begin_work();
  const std::shared_ptr<gather::ShardSource> shards = open();
  auto looked = co_await gather::look_through(*shards, facts_.context.seams.compute);
  if (looked) know(at, {looked->layouts, std::move(looked->missing)});
  ended(at, looked ? Status() : Status(fail(std::move(looked).error())));
}

void CoverageCheck::ended(format::StepId at, const Status& looked) {
  is_looking_ = false;
  if (!looked) log_unknown(at, looked.error());
  life_.touch();
}

void CoverageCheck::log_unknown(format::StepId at, const Error& error) const {
  log_info("job={} step={} not looked through for missing pieces: {}", facts_.shape.job,
           number(at.step), error.message());
}

Task<void> CoverageCheck::look_in_places(format::StepId at) {
  CKPT_CO_TRY(storage::OpenStep step, co_await reads_.open(at));
  Status looked = co_await look(std::move(step));
  co_return looked;
}

Task<void> CoverageCheck::look_in(StoredPlace& place, storage::Checkpoint checkpoint) {
  CKPT_CO_TRY(storage::OpenStep step,
              co_await storage::OpenStep::in(place.site(), std::move(checkpoint.name)));
  Status looked = co_await look(std::move(step));
  co_return looked;
}

Task<void> CoverageCheck::look(storage::OpenStep step) {
  const format::StepId at = step.manifest()->at;
  CKPT_CO_TRY(gather::LookedThrough looked,
              co_await gather::look_through(std::move(step), facts_.context.seams.compute));
  know(at, {looked.layouts, std::move(looked.missing)});
  co_return Status();
}

void CoverageCheck::know(format::StepId at, Known known) {
  known_.insert_or_assign(at, std::move(known));
  if (known_.size() > known_max) known_.erase(known_.begin());
}

void CoverageCheck::published(format::StepId at, std::optional<Digest> layouts) {
  known_.erase(at);
  if (!layouts) return;
  const auto same = std::ranges::find_if(
      known_, [&](const auto& each) { return each.second.layouts == layouts; });
  if (same != known_.end()) know(at, Known(same->second));
}

void CoverageCheck::show(format::StepId at) {
  const gather::Missing& now = known_.at(at).missing;
  newest_ = at;
  if (are_equal(now, missing_)) return;
  const bool had_holes = missing_.tensors > 0;
  missing_ = now;
  since_ = at.step;
  life_.touch();
  if (now.tensors > 0) {
    log_warning("job={} step={} is {} {}", facts_.shape.job, number(at.step), place(),
                gather::in_words(now));
  } else if (had_holes) {
    log_info("job={} step={} is {} with all pieces again", facts_.shape.job, number(at.step),
             place());
  }
}

const char* CoverageCheck::place() const {
  return facts_.directory.empty() ? "in memory" : "stored";
}

std::string CoverageCheck::text() const {
  if (missing_.tensors == 0) return {};
  std::string text = fmt::format("steps from {} on are {} {}", number(since_), place(),
                                 gather::in_words(missing_));
  if (kept_) text += fmt::format("; step {}, which lacks less, is kept", number(kept_->step));
  return text;
}

// Unknown afterwards: it could not be read.
asio::awaitable<void> CoverageCheck::learn(StoredPlace& place, storage::Checkpoint checkpoint) {
  const format::StepId at = checkpoint.at;
  const Status looked = co_await look_in(place, std::move(checkpoint));
  if (!looked) log_unknown(at, looked.error());
}

asio::awaitable<void> CoverageCheck::protect(StoredPlace& place,
                                             const std::vector<storage::Checkpoint>& there,
                                             storage::RetentionOrder& order) {
  const bool is_first_place = place.directory() == facts_.directory;
  if (is_first_place) kept_.reset();
  const std::uint32_t count = order.rule.max_ckpt_num;
  if (count == 0 || there.size() <= count) co_return;
  std::size_t looks = 0;
  storage::LastWhole whole;
  for (std::size_t left = there.size(); left-- > 0 && !whole.is_found();) {
    const storage::Checkpoint& each = there[left];
    const bool is_damaged = std::ranges::find(order.damaged, each.at) != order.damaged.end();
    if (is_damaged || facts_.is_fenced(each.at)) continue;
    const bool is_new = !known_.contains(each.at);
    const bool is_left_out = is_new && looks == looks_max;
    if (is_left_out) order.protected_steps.push_back(each.at);
    if (is_new && !is_left_out) {
      ++looks;
      co_await learn(place, each);
    }
    const auto known = known_.find(each.at);
    whole.add(each.at,
              known == known_.end() ? std::nullopt : std::optional(known->second.missing.tensors));
  }
  const std::optional<format::StepId> stays = whole.step();
  if (!stays) co_return;
  order.protected_steps.push_back(*stays);
  if (is_first_place && !whole.is_newest()) kept_ = stays;
}

}  // namespace ckpt::node
