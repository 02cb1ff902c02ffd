#include "client/held_copies.hpp"

#include <utility>

#include "base/assert.hpp"
#include "format/piece.hpp"
#include "plan/sample.hpp"

namespace ckpt::client {

namespace {

// Hashing a sample then adds a few hundredths to the time of a share's copies: measured in decision
// 0030.
constexpr std::uint32_t sampled_per_share = 16;
// A GPU reads its memory some 64 times as fast as its link carries a share. So much of it is read
// in an eighth of the time that the copies of the share take (decision 0070).
constexpr std::uint32_t shares_on_gpu_max = 8;
// Copies without room for a note are not compared: notes are part of a message of 64 MiB at most.
constexpr std::size_t notes_bytes_max = std::size_t{8} << 20;
constexpr std::size_t note_bytes = sizeof(std::uint32_t) + sizeof(Digest) + sizeof(Crc32);

}  // namespace

CompareSchedule::CompareSchedule(const Options& options)
    : is_on_(options.compare_copies && !options.dir.empty()),
      steps_(options.save_storage_interval.steps) {}

// As agree/flush_rule.hpp: stored is the first captured step from a multiple of the interval on.
Compared CompareSchedule::next(Step step) {
  if (!is_on_) return Compared::nothing;
  const Step before = std::exchange(newest_, step);
  if (steps_ == 0) return Compared::sample;
  return number(step) / steps_ > number(before) / steps_ ? Compared::all : Compared::sample;
}

HeldCopies::HeldCopies(const std::vector<HeldCopy>& copies) {
  std::size_t notes_bytes = 0;
  for (const HeldCopy& copy : copies) {
    notes_bytes += note_bytes + copy.name.size();
    if (notes_bytes > notes_bytes_max) break;  // At all ranks alike, if they name tensors alike.
    const TensorRef& tensor = copy.tensor;
    // As in share_of(): a whole tensor may be given as a box or as a range.
    std::optional<Piece> part = tensor.piece;
    if (part) part->copy = 0;
    part = format::normalized(std::move(part), tensor.shape);
    Entry entry{copy.name,
                tensor.dtype,
                format::global_shape_of(part, tensor.shape),
                format::region_of(part, tensor.shape),
                {},
                {},
                tensor.guarded,
                copy.copies,
                copy.device,
                {}};
    if (part) entry.order = part->order;
    entry.bytes = {static_cast<const std::byte*>(tensor.data), copy.bytes};
    entry.identity = identity_of(entry, std::nullopt);
    entries_.push_back(std::move(entry));
  }
  stretches_.resize(entries_.size());
}

Digest HeldCopies::identity_of(const Entry& entry, std::optional<format::Extent> bytes) {
  Digest identity = format::identity_of(
      {entry.name, entry.dtype, entry.global_shape, entry.region, entry.order}, bytes);
  // A short fingerprint compares with no CRC of the same elements.
  if (entry.device != 0) identity.high = ~identity.high;
  return identity;
}

std::vector<snapshot::HashedSource> HeldCopies::sources() const {
  std::vector<snapshot::HashedSource> sources;
  for (const Entry& entry : entries_)
    sources.push_back({entry.bytes, entry.is_guarded, entry.device});
  return sources;
}

std::optional<device::Stretch> HeldCopies::stretch_of(const Entry& entry, Step step,
                                                      Compared compared) {
  std::uint32_t parts = sampled_per_share * entry.copies;
  if (compared == Compared::all)
    parts = entry.device == 0 ? 1 : (entry.copies - 1) / shares_on_gpu_max + 1;
  const plan::SampledTensor tensor{entry.bytes.size(), parts, entry.identity.low};
  const auto sample = plan::sample_of(tensor, number(step));
  if (!sample) return std::nullopt;
  return device::Stretch{sample->offset, sample->bytes};
}

std::span<const device::Stretch> HeldCopies::choose(Step step, Compared compared) {
  if (compared == Compared::nothing) return {};
  for (std::size_t index = 0; index < entries_.size(); ++index)
    stretches_[index] = stretch_of(entries_[index], step, compared).value_or(device::Stretch{});
  return stretches_;
}

std::vector<format::CopyNote> HeldCopies::notes(std::span<const std::optional<Crc32>> crcs) const {
  std::vector<format::CopyNote> notes;
  if (crcs.empty()) return notes;
  CKPT_ASSERT(crcs.size() == entries_.size());
  for (std::size_t index = 0; index < crcs.size(); ++index) {
    const Entry& entry = entries_[index];
    const device::Stretch& stretch = stretches_[index];
    if (stretch.bytes == 0 || !crcs[index]) continue;
    Digest identity = entry.identity;
    if (stretch.bytes < entry.bytes.size()) {
      identity = identity_of(entry, format::Extent{stretch.offset, stretch.bytes});
    }
    notes.push_back({entry.name, identity, *crcs[index]});
  }
  return notes;
}

}  // namespace ckpt::client
