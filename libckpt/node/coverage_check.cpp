#include "node/coverage_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "gather/stored_shards.hpp"
#include "storage/publish_order.hpp"

namespace ckpt::node {

namespace {

// "stored without w[512:1024, :], which no rank has saved, and parts of 2 more: a reader of the
// whole tensor will fail".
std::string in_words(const gather::Missing& missing) {
  const std::size_t others = missing.tensors - 1;
  if (!missing.contradiction.empty())
    return fmt::format(
        "stored with a contradiction{}, so that only the same ranks can restore {}: {}",
        others == 0 ? "" : fmt::format(", and with holes or contradictions in {} more", others),
        others == 0 ? "it" : "them", missing.contradiction);
  return fmt::format(
      "stored without {}, which no rank has saved{}: a reader of the whole tensor "
      "will fail",
      missing.what, others == 0 ? "" : fmt::format(", and parts of {} more", others));
}

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
  // A step that was restored was whole for its readers.
  const auto& start = facts_.decree.start;
  if (!start || at.timeline != start->timeline) return forget();
  if (is_looking_ || tried_ == at) return;
  tried_ = at;
  is_looking_ = true;
  facts_.context.spawn(run(at));
}

asio::awaitable<void> CoverageCheck::run(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Status looked = co_await look_in_places(at);
  is_looking_ = false;
  if (!looked)
    log_info("job={} step={} not looked through for missing pieces: {}", facts_.shape.job,
             number(at.step), looked.error().message());
  life_.touch();
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
  gather::StoredShards stored(step);
  CKPT_CO_TRY(const auto shards, co_await gather::KnownShards::read(stored));
  std::function<Result<gather::Missing>()> find = [shards]() -> Result<gather::Missing> {
    return gather::find_missing(gather::list_tensors(*shards));
  };
  CKPT_CO_TRY(gather::Missing missing,
              co_await compute_on(facts_.context.seams.compute, std::move(find)));
  std::vector<Digest> models;
  for (std::uint32_t rank = 0; rank < shards->shard_count(); ++rank)
    models.push_back(shards->record(rank).model);
  know(at, {storage::digest_of_layouts(models), std::move(missing)});
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
    log_warning("job={} step={} is {}", facts_.shape.job, number(at.step), in_words(now));
  } else if (had_holes) {
    log_info("job={} step={} is stored with all pieces again", facts_.shape.job, number(at.step));
  }
}

std::string CoverageCheck::text() const {
  if (missing_.tensors == 0) return {};
  std::string text = fmt::format("steps from {} on are {}", number(since_), in_words(missing_));
  if (kept_) text += fmt::format("; step {}, which lacks less, is kept", number(kept_->step));
  return text;
}

// Unknown afterwards: it could not be read.
asio::awaitable<void> CoverageCheck::learn(StoredPlace& place, storage::Checkpoint checkpoint) {
  const format::StepId at = checkpoint.at;
  const Status looked = co_await look_in(place, std::move(checkpoint));
  if (!looked)
    log_info("job={} step={} not looked through for missing pieces: {}", facts_.shape.job,
             number(at.step), looked.error().message());
}

asio::awaitable<void> CoverageCheck::protect(StoredPlace& place,
                                             const std::vector<storage::Checkpoint>& there,
                                             storage::RetentionOrder& order) {
  const bool is_first_place = place.directory() == facts_.directory;
  if (is_first_place) kept_.reset();
  const std::uint32_t count = order.rule.max_ckpt_num;
  if (count == 0 || there.size() <= count) co_return;
  std::size_t looks = 0;
  std::vector<format::StepId> steps;  // The newest first.
  std::optional<std::size_t> fewest;
  std::optional<format::StepId> best;  // The newest of those with holes in the fewest tensors.
  for (std::size_t left = there.size(); left-- > 0 && fewest != 0;) {
    const storage::Checkpoint& each = there[left];
    const bool is_damaged = std::ranges::find(order.damaged, each.at) != order.damaged.end();
    if (is_damaged || facts_.is_fenced(each.at)) continue;
    steps.push_back(each.at);
    const bool is_new = !known_.contains(each.at);
    const bool is_left_out = is_new && looks == looks_max;
    if (is_left_out) order.protected_steps.push_back(each.at);
    if (is_new && !is_left_out) {
      ++looks;
      co_await learn(place, each);
    }
    const auto known = known_.find(each.at);
    if (known == known_.end() || (fewest && known->second.missing.tensors >= *fewest)) continue;
    fewest = known->second.missing.tensors;
    best = each.at;
  }
  if (steps.empty()) co_return;
  // Where none could be read, the one before the newest may be the whole one.
  if (!best) best = steps[std::min<std::size_t>(1, steps.size() - 1)];
  order.protected_steps.push_back(*best);
  if (is_first_place && *best != steps.front()) kept_ = best;
}

}  // namespace ckpt::node
