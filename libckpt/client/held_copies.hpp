// HeldCopies: the tensors that this rank holds as a copy and shares with others in captures, and
// which of their bytes a save compares.
//
// A capture has only a share of such a tensor, so that nobody reads all copies of it. Therefore a
// save takes checksums of the rank's own memory, of the tensor as a whole, and the save to storage
// compares those of all ranks. Nothing is copied: a GPU takes short fingerprints where the tensor
// lies, if it takes any (device/cuda_hash_run.hpp), and of tensors with many copies only a part.
//
// Threads: the training thread; notes() on the thread that ends a capture.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "format/copy_note.hpp"
#include "snapshot/snapshotter.hpp"

namespace ckpt::client {

struct HeldCopy {
  std::string name;
  const TensorRef& tensor;  // Its piece has no problem.
  std::uint64_t bytes = 0;
  std::uint32_t copies = 0;
  std::size_t device = 0;  // As in DeviceTable: 0 is the host.
};

// Compared: how much of the copies a save compares.
enum class Compared : std::uint8_t { nothing, sample, all };

// CompareSchedule: which saves compare copies, and how much of them. Every rank decides alike.
//
// With an interval in steps, the saves that the coordinator will store compare everything. Clocks
// of ranks differ, so an interval in time cannot say which saves these are: there every save
// compares a sample, and so do the other saves of an interval in steps, any of which may be stored
// at an end.
class CompareSchedule {
 public:
  explicit CompareSchedule(const Options& options);
  // For the capture of this step, which begins now.
  Compared next(Step step);
  void restart(std::optional<Step> restored) { newest_ = restored.value_or(Step{}); }

 private:
  bool is_on_ = false;
  std::uint64_t steps_ = 0;  // Between two saves to storage; 0: the clock decides.
  Step newest_{};            // The newest that was captured, or restored.
};

class HeldCopies {
 public:
  HeldCopies() = default;
  explicit HeldCopies(const std::vector<HeldCopy>& copies);

  std::vector<snapshot::HashedSource> sources() const;
  // Parallel to sources(); empty: nothing is compared. Valid until the next call.
  std::span<const device::Stretch> choose(Step step, Compared compared);
  // `crcs` are those of the stretches that were chosen last, as far as they were taken.
  std::vector<format::CopyNote> notes(std::span<const std::optional<Crc32>> crcs) const;

 private:
  struct Entry {
    std::string name;
    DType dtype = DType::u8;
    std::vector<std::uint64_t> global_shape;
    Region region;
    std::vector<std::uint8_t> order;
    std::span<const std::byte> bytes;
    bool is_guarded = false;
    std::uint32_t copies = 0;
    std::size_t device = 0;
    Digest identity;  // That of all its bytes.
  };
  static Digest identity_of(const Entry& entry, std::optional<format::Extent> bytes);
  static std::optional<device::Stretch> stretch_of(const Entry& entry, Step step,
                                                   Compared compared);

  std::vector<Entry> entries_;
  std::vector<device::Stretch> stretches_;
};

}  // namespace ckpt::client
