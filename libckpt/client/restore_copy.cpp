#include "client/restore_copy.hpp"

#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "client/deadline.hpp"

namespace ckpt::client {

Status RestoreCopy::run(const format::ShardRecord& record, std::span<const std::byte> slot,
                        const RestoreTerms& terms) {
  if (terms.choose != nullptr) return run_chosen(record, slot, *terms.choose);
  auto targets = parts_.registry.targets();
  std::vector<std::string> saved_names(targets.size());
  for (std::size_t index = 0; index < targets.size(); ++index) {
    CKPT_TRY(saved_names[index], terms.names.of(targets[index].name));
    targets[index].name = saved_names[index];
  }
  const auto wanted =
      terms.leaves_rest ? snapshot::Wanted::some_tensors : snapshot::Wanted::all_tensors;
  CKPT_TRY(const snapshot::RestorePlan plan, snapshot::plan_restore(record, targets, wanted));
  if (terms.leaves_rest) return copy(record, slot, plan);
  CKPT_CHECK(parts_.blobs.check(record));
  CKPT_CHECK(copy(record, slot, plan));
  parts_.blobs.restore(record, slot);
  return {};
}

Status RestoreCopy::run_chosen(const format::ShardRecord& record, std::span<const std::byte> slot,
                               const ChooseTargets& choose) {
  std::vector<StoredTensor> stored;
  for (const auto& place : record.layout.tensors)
    stored.push_back({place.name, place.dtype, place.shape, place.alias_of,
                      place.piece ? &*place.piece : nullptr});
  parts_.blobs.keep(record, slot);
  CKPT_TRY(auto chosen, choose(record.id.at.step, stored));
  TensorRegistry registry(&parts_.devices);
  for (NamedTensor& target : chosen)
    CKPT_CHECK(registry.add(std::move(target.name), std::move(target.tensor)));
  const auto targets = registry.targets();
  constexpr auto some = snapshot::Wanted::some_tensors;
  CKPT_TRY(const snapshot::RestorePlan plan, snapshot::plan_restore(record, targets, some));
  return copy(record, slot, plan);
}

Status RestoreCopy::copy(const format::ShardRecord& record, std::span<const std::byte> slot,
                         const snapshot::RestorePlan& plan) {
  RestoreTeller& teller = parts_.teller;
  teller.begin(RestoreProgress::Phase::copying, "own memory", record.bytes);
  const Deadline deadline = deadline_after(parts_.time_max);
  DeviceTable& devices = parts_.devices;
  // The copy is slower from memory that is not pinned yet.
  if (devices.has_gpus()) (void)devices.pins()->wait_settled(deadline);
  const auto copied = [&teller](std::uint64_t bytes) { teller.done(bytes); };
  std::optional<device::CopyThreads> more;
  try {
    more.emplace(snapshot::restore_threads(devices.threads().count()));
  } catch (const std::system_error&) {  // A limit on threads: those of captures do it.
  }
  device::CopyThreads& threads = more ? *more : devices.threads();
  return snapshot::restore_tensors(
      record, slot, plan,
      {devices.devices(), threads, deadline, parts_.before_overwriting, copied});
}

}  // namespace ckpt::client
