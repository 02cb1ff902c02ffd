// DeviceContract: the duties of every Device, wherever its tensors lie.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"

namespace ckpt::test {

// One Device, with memory of its kind to put tensors in.
class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;
  virtual device::Device& device() = 0;
  virtual Stream stream() = 0;  // The trainer's.
  // Makes Slot memory fit for fast copies, as long as the answer lives, and keeps it meanwhile.
  virtual std::shared_ptr<const void> pin(const std::shared_ptr<std::vector<std::byte>>& slot) = 0;
  // The largest tensor's; less where each byte costs much.
  virtual std::size_t large_mib() const { return 24; }
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // As the trainer's own work would: queued on stream().
  virtual void write(std::byte* target, std::span<const std::byte> source) = 0;
  virtual std::vector<std::byte> read(const std::byte* source, std::size_t bytes) = 0;
};

void check_a_run_copies_every_piece(DeviceUnderTest& subject);
void check_a_run_copies_what_the_sources_hold_at_its_start(DeviceUnderTest& subject);
void check_a_fence_frees_the_sources(DeviceUnderTest& subject);
void check_a_fence_of_an_idle_run_is_nothing(DeviceUnderTest& subject);
void check_an_empty_run_ends(DeviceUnderTest& subject);
void check_several_runs_go_on_at_once(DeviceUnderTest& subject);
void check_a_run_may_be_destroyed_while_it_copies(DeviceUnderTest& subject);
void check_copies_in_are_there_when_settled(DeviceUnderTest& subject);

}  // namespace ckpt::test
