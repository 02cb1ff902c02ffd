// CaptureWorld: a trainer on the stand-in driver, its captures step by step, and what they must
// hold.
//
// The trainer updates its tensors as soon as it may: unguarded ones right after save() has
// returned, the rest right after guard(). Each time the listener hears of bytes that arrived, it
// compares them one by one. At the end the Slot is overwritten at once, since by then it belongs to
// somebody else; unless captures skip what their Slot still holds, which then stays as it is.
//
// Threads: one, but for the listener.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/copy_threads.hpp"
#include "device/gpus.hpp"
#include "snapshot/snapshotter.hpp"
#include "support/cuda_stand_in/stand_in.hpp"

namespace ckpt::test {

enum class Guarded : std::uint8_t { none, some, all };  // Which of the tensors.

struct WorldOptions {
  std::string words;  // For the stand-in.
  std::uint64_t seed = 1;
  bool is_pinned = true;
  int gpus = 1;  // Tensors lie on all of them, in turn.
  std::size_t tensors = 24;
  Guarded guarded = Guarded::some;
  bool has_frozen = false;  // Each second one is called frozen, whatever happens to it.
  device::GpuOptions device = {0, 64 * KiB, 8};
  std::size_t slots = 2;     // They are filled in turn.
  bool trains_long = false;  // A capture has ended before the next guard.
  bool has_hashes = false;   // Captures take checksums of the tensors, or of parts of them.
  // How many bytes of a tensor, one behind the other, change after a step. Empty: all of each.
  std::function<std::size_t(std::size_t tensor, std::uint64_t step)> changes;
};

// `words` are added to the seed.
WorldOptions options_of(std::uint64_t seed, const std::string& words = "");

class CaptureWorld final : private snapshot::CaptureListener {
 public:
  // `plant`: the call, counted from when libckpt is first used, that fails with `error`.
  explicit CaptureWorld(const WorldOptions& options, std::uint64_t plant = 0, int error = 0);
  ~CaptureWorld() override;

  // One step of training: save, forward pass, guard, update. False: there are findings.
  bool step();
  // As often, then waits for the last capture.
  bool run(std::size_t steps);

  std::size_t good() const { return good_; }      // Captures whose bytes are right.
  std::size_t failed() const { return failed_; }  // Those that were reported as failed.
  // Wrong bytes, and what the stand-in complains of. Empty: all is as it should be.
  std::string findings() const;
  const std::string& first_error() const { return first_error_; }
  snapshot::Snapshotter& snapshotter() { return *snapshotter_; }
  // Waits for the last capture.
  bool wait_idle();
  std::size_t hashed() const { return hashed_; }  // Good captures that took all their checksums.
  std::uint64_t bytes_unchanged() const { return bytes_unchanged_; }  // In the newest good capture.
  const format::Layout& layout() const { return layout_; }
  std::span<std::byte> slot(std::size_t index) const;
  std::size_t slot_of(std::uint64_t step) const { return step % slots_.size(); }
  // Its memory is another one from now on, as after a resize.
  void rename_slots() { generation_ += slots_.size(); }
  void forget_names() { generation_ = 0; }
  StandInTrainer& trainer() { return *trainer_; }
  bool is_ready() const { return snapshotter_ != nullptr; }

 private:
  struct Tensor {
    std::string name;
    std::byte* data = nullptr;
    int gpu = 0;
    bool is_guarded = false;
    std::vector<std::byte> bytes;  // As they will be when all that is queued has run.
  };

  void capture_arrived(std::uint64_t bytes) override;
  std::string tensors_in(const format::Extent& in_slot) override {
    return format::tensors_in(layout_, in_slot);
  }
  void capture_ended(const snapshot::Captured& captured) override;
  void make_tensors(const WorldOptions& options);
  bool make_snapshotter(const WorldOptions& options);
  void update(bool guarded);
  // For the tensors that lie below this offset in the Slot.
  bool is_right(std::uint64_t slot_end);
  void choose_hashed();
  void look_at_hashes(std::span<const std::optional<Crc32>> hashes);
  void note(const Error& error);
  void note_wrong(const std::string& what);
  std::string wrong() const;

  std::unique_ptr<StandInTrainer> trainer_;
  std::shared_ptr<device::MemoryPins> pins_;
  std::unique_ptr<device::Gpus> gpus_;
  std::vector<device::Device*> devices_;
  std::unique_ptr<device::CopyThreads> threads_;
  std::unique_ptr<device::Device> host_;

  std::vector<Tensor> tensors_;
  std::vector<std::size_t> order_;  // Of tensors_, as the layout has them.
  format::Layout layout_;
  std::vector<std::shared_ptr<std::vector<std::byte>>> slots_;
  std::vector<std::shared_ptr<const void>> pinned_;
  std::uint64_t step_ = 0;
  std::uint64_t seed_ = 1;
  std::uint64_t generation_ = 1;  // The first Slot's.
  const bool is_skipping_;
  const std::function<std::size_t(std::size_t, std::uint64_t)> changes_;
  std::vector<std::vector<std::byte>> expected_;  // For the running capture, by tensor.
  const bool has_hashes_;
  const bool trains_long_;
  std::vector<device::Stretch> stretches_;  // As expected_.
  std::span<std::byte> slot_;
  std::vector<std::byte> left_;  // Left in its Slot by a capture.

  std::size_t good_ = 0;
  std::size_t failed_ = 0;
  std::size_t hashed_ = 0;
  std::uint64_t bytes_unchanged_ = 0;
  mutable std::mutex mutex_;  // For the next two, which the listener writes as well.
  std::string wrong_;
  std::string first_error_;
  std::unique_ptr<snapshot::Snapshotter> snapshotter_;
};

}  // namespace ckpt::test
