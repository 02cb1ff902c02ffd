#include "storage/step_attempt.hpp"

#include "base/assert.hpp"
#include "storage/attempt.hpp"
#include "storage/copies.hpp"

namespace ckpt::storage {

StepAttempt::StepAttempt(Site site, std::string name)
    : site_(std::move(site)), place_(attempt_path(site_, name)) {}

std::optional<format::StepId> step_of_attempt(std::string_view name) {
  const auto work = parse_work_directory(name);
  if (!work) return std::nullopt;
  return work->at;
}

Task<void> begin(StepAttempt attempt) {
  CKPT_ASSERT(!attempt.place().empty());
  Status made = co_await attempt.site().files().make_directory(attempt.place());
  co_return made;
}

Task<format::ShardFlushed> put(StepAttempt attempt, ShardToWrite source, TransferHooks hooks) {
  CKPT_ASSERT(!attempt.place().empty());
  auto put = co_await write_shard(attempt.site().files(), std::move(source), attempt.place(),
                                  std::move(hooks));
  co_return put;
}

Task<void> note_copies(StepAttempt attempt, ShardToWrite source) {
  CKPT_ASSERT(source.record != nullptr);
  const Site& site = attempt.site();
  Status noted =
      co_await note_copies(site.files(), std::move(source), attempt.place(), site.compute());
  co_return noted;
}

}  // namespace ckpt::storage
