#include "node/coverage_check.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "gather/stored_shards.hpp"

namespace ckpt::node {

void CoverageCheck::update(bool is_coordinator) {
  if (!is_coordinator || !facts_.durable || checked_world_ == facts_.shape.world_size) return;
  // A step that was restored was whole for its readers.
  const auto& start = facts_.decree.start;
  const bool is_of_now = start && facts_.durable->timeline == start->timeline;
  if (!is_of_now || facts_.directory.empty()) return;
  checked_world_ = facts_.shape.world_size;
  facts_.context.spawn(run(*facts_.durable));
}

asio::awaitable<void> CoverageCheck::run(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Status checked = co_await check(at);
  if (!checked)
    log_info("job={} step={} not looked through for missing pieces: {}", facts_.shape.job,
             number(at.step), checked.error().message());
  life_.touch();
}

Task<void> CoverageCheck::check(format::StepId at) {
  CKPT_CO_TRY(const auto step, co_await storage_.reads().open(at));
  gather::StoredShards stored(step);
  CKPT_CO_TRY(const auto shards, co_await gather::KnownShards::read(stored));
  std::function<Result<gather::Missing>()> find = [shards]() -> Result<gather::Missing> {
    return gather::find_missing(gather::list_tensors(*shards));
  };
  CKPT_CO_TRY(missing_, co_await compute_on(facts_.context.seams.compute, std::move(find)));
  checked_ = at;
  if (missing_.tensors > 0) {
    log_warning(
        "job={} step={} is stored without {}, which no rank has saved{}: a reader of the whole "
        "tensor will fail",
        facts_.shape.job, number(at.step), missing_.what,
        missing_.tensors == 1 ? "" : fmt::format(", and parts of {} more", missing_.tensors - 1));
  }
  co_return Status();
}

}  // namespace ckpt::node
