#include "storage/copy_target.hpp"

#include <fmt/format.h>

#include "storage/merge_timelines.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::storage {

namespace {

format::Timelines history_of(const CopyOrder& order) {
  if (order.timelines) return *order.timelines;
  format::Timelines ours;
  ours.run = order.manifest->run;
  ours.history = {{order.manifest->at.timeline, {}}};
  return ours;
}

// The history of both places.
Result<format::Timelines> checked(const Site& target, const CopyOrder& order,
                                  Result<format::Timelines> merged) {
  if (!merged)
    return fail(std::move(merged).error().context(copy_label(order) + " to " + target.directory()));
  const format::StepId at = order.manifest->at;
  if (!order.is_of_running_job || !format::is_abandoned(merged->history, at)) return merged;
  return fail(Errc::invalid_argument,
              fmt::format("{} of timeline {} to {}: a restore has abandoned it", copy_label(order),
                          at.timeline, target.directory()));
}

}  // namespace

Task<format::Timelines> prepare_target(Site target, const CopyOrder& order) {
  const format::Manifest& manifest = *order.manifest;
  RunOrder run;
  run.job = manifest.job;
  run.fresh_run = manifest.run;
  run.attempt = order.attempt;
  CKPT_CO_TRY(const format::RunMarker marker, co_await open_run_directory(target, std::move(run)));
  if (marker.run != manifest.run) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("{} to {}: it is the directory of another run of job \"{}\"",
                               copy_label(order), target.directory(), marker.job));
  }
  auto planned = co_await load_timelines(target, manifest.run);
  if (planned) planned = merge(*planned, history_of(order));
  co_return checked(target, order, std::move(planned));
}

Task<format::Timelines> add_history(Site target, const CopyOrder& order) {
  auto added =
      co_await add_timelines(target, history_of(order), RestoreCounts::of_theirs, order.attempt);
  co_return checked(target, order, std::move(added));
}

}  // namespace ckpt::storage
