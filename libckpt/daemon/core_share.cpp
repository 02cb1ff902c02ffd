#include "daemon/core_share.hpp"

#include "base/log.hpp"

namespace ckpt::daemon {

os::CoreSet cores_beside(const os::CoreSet& ours, const std::vector<os::CoreSet>& trainers) {
  os::CoreSet left = ours;
  for (const os::CoreSet& cores : trainers) {
    const bool is_bound = (ours & ~cores).any();
    if (is_bound) left &= ~cores;
  }
  return left.any() ? left : ours;
}

CoreShare::CoreShare() {
  const auto ours = os::cores_of(0);
  if (ours) ours_ = now_ = *ours;
  if (!ours) complain(ours.error());
}

void CoreShare::settle(const std::vector<pid_t>& trainers) {
  if (!ours_) return;
  std::vector<os::CoreSet> theirs;
  for (const pid_t trainer : trainers) {
    const auto cores = os::cores_of(trainer);
    if (cores) theirs.push_back(*cores);
    // A trainer that has just died claims nothing.
    if (!cores && cores.error().code() != Errc::not_found) complain(cores.error());
  }
  const os::CoreSet wanted = cores_beside(*ours_, theirs);
  if (wanted == now_) return;
  if (const Status bound = os::bind_threads(wanted); !bound) return complain(bound.error());
  now_ = wanted;
  log_info("runs on cores {}{}", os::to_text(wanted),
           wanted == *ours_ ? "" : ", and leaves the others to trainers that are bound to some");
}

void CoreShare::complain(const Error& error) {
  if (has_complained_) return;
  has_complained_ = true;
  log_warning("the daemon may slow down training on its cores: {}", error.message());
}

}  // namespace ckpt::daemon
