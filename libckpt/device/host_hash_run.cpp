#include "device/host_hash_run.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::device {

namespace {

// As much as a strip has: the threads share large tensors.
constexpr std::uint64_t unit_bytes = 4 * MiB;

}  // namespace

std::vector<HostHashRun::Unit> HostHashRun::units_of(
    std::span<const std::span<const std::byte>> sources) {
  std::vector<Unit> units;
  for (std::size_t source = 0; source < sources.size(); ++source)
    for (std::uint64_t begin = 0; begin < sources[source].size(); begin += unit_bytes)
      units.push_back({source, begin});
  return units;
}

HostHashRun::HostHashRun(CopyThreads& threads, std::vector<std::span<const std::byte>> sources,
                         CopyListener& listener)
    : Work(units_of(sources).size()),
      threads_(threads),
      sources_(std::move(sources)),
      units_(units_of(sources_)),
      unit_crcs_(units_.size()),
      crcs_(sources_.size()),
      listener_(listener) {}

void HostHashRun::choose(std::span<const Stretch> stretches) {
  CKPT_ASSERT(stretches.size() == sources_.size());
  for (std::size_t source = 0; source < stretches.size(); ++source) {
    CKPT_ASSERT(stretches[source].offset <= sources_[source].size());
    CKPT_ASSERT(stretches[source].bytes <= sources_[source].size() - stretches[source].offset);
  }
  stretches_ = stretches;
}

Status HostHashRun::start(const CopyStart&) {
  CKPT_ASSERT(stretches_.size() == sources_.size());
  threads_.start(*this);
  return {};
}

Status HostHashRun::fence(Stream) {
  return threads_.help(*this, std::chrono::steady_clock::now() + host_fence_deadline);
}

// Empty: the stretch ends before it.
std::span<const std::byte> HostHashRun::bytes_of(const Unit& unit) const {
  const Stretch& stretch = stretches_[unit.source];
  if (unit.begin >= stretch.bytes) return {};
  const std::uint64_t bytes = std::min(unit_bytes, stretch.bytes - unit.begin);
  return sources_[unit.source].subspan(stretch.offset + unit.begin, bytes);
}

void HostHashRun::carry_out(std::size_t index) {
  unit_crcs_[index] = crc32(bytes_of(units_[index]));
}

void HostHashRun::ended() {
  std::ranges::fill(crcs_, 0);
  for (std::size_t index = 0; index < units_.size(); ++index) {
    Crc32& crc = crcs_[units_[index].source];
    crc = crc32_combine(crc, unit_crcs_[index], bytes_of(units_[index]).size());
  }
  listener_.run_ended({});
}

}  // namespace ckpt::device
