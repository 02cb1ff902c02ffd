#include "storage/retention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/removal.hpp"
#include "storage/run_catalog.hpp"

namespace ckpt::storage {

std::vector<std::size_t> select_for_deletion(std::span<const Checkpoint> checkpoints,
                                             std::uint32_t max_ckpt_num,
                                             std::span<const format::StepId> protected_steps) {
  std::vector<std::size_t> order(checkpoints.size());
  for (std::size_t index = 0; index < order.size(); ++index) order[index] = index;
  std::sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return std::tuple(!checkpoints[left].is_abandoned, checkpoints[left].at, left) <
           std::tuple(!checkpoints[right].is_abandoned, checkpoints[right].at, right);
  });
  if (max_ckpt_num == 0 || order.size() <= max_ckpt_num) return {};
  order.resize(order.size() - max_ckpt_num);
  CKPT_ASSERT(order.size() < checkpoints.size());
  std::erase_if(order, [&](std::size_t index) {
    return std::find(protected_steps.begin(), protected_steps.end(), checkpoints[index].at) !=
           protected_steps.end();
  });
  return order;
}

namespace {

// The error is about the directory, and not about one attempt to read it.
bool is_verdict(Errc code) {
  return code == Errc::not_found || code == Errc::corruption || code == Errc::invalid_argument ||
         code == Errc::version_mismatch;
}

}  // namespace

Task<std::vector<Checkpoint>> apply_retention(Site site, RetentionOrder order, Catalog& catalog) {
  std::vector<Checkpoint> deleted;
  if (order.max_ckpt_num == 0) co_return deleted;
  for (const Rejected& rejected : catalog.rejected) {
    // It may be the newest. An unreadable step is no reason to delete another.
    if (!is_verdict(rejected.code)) {
      co_return fail(Errc::unavailable,
                     fmt::format("choose what to delete: {} could not be read: {}", rejected.name,
                                 rejected.reason));
    }
  }
  const auto marked = co_await mark_abandoned(site, order.run, catalog);
  if (!marked) log_warning("storage: the oldest go first: {}", marked.error().message());
  const auto chosen =
      select_for_deletion(catalog.checkpoints, order.max_ckpt_num, order.protected_steps);
  CKPT_POINT("prune.select");
  const std::string reason = fmt::format("only the newest {} are kept", order.max_ckpt_num);
  std::vector<Checkpoint> superfluous;
  for (const std::size_t index : chosen) superfluous.push_back(catalog.checkpoints[index]);
  CKPT_ASSERT(superfluous.empty() ||
              superfluous.size() + order.max_ckpt_num <= catalog.checkpoints.size());
  for (Checkpoint& checkpoint : superfluous) {
    CKPT_CO_CHECK(co_await remove_checkpoint(site, checkpoint.name, order.run, reason));
    std::erase_if(catalog.checkpoints,
                  [&](const Checkpoint& listed) { return listed.name == checkpoint.name; });
    deleted.push_back(std::move(checkpoint));
  }
  co_return deleted;
}

}  // namespace ckpt::storage
