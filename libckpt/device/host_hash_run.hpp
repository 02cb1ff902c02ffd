// HostHashRun: takes checksums of host memory on the copy threads.
#pragma once

#include "device/copy_threads.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class HostHashRun final : public HashRun, private CopyThreads::Work {
 public:
  HostHashRun(CopyThreads& threads, std::vector<std::span<const std::byte>> sources,
              CopyListener& listener);
  ~HostHashRun() override { threads_.retire(*this); }

  void choose(std::span<const Stretch> stretches) override;
  Status start(const CopyStart& start) override;
  Status fence(Stream stream) override;
  Status wait_idle(Deadline deadline) override { return threads_.wait_idle(*this, deadline); }
  std::span<const Crc32> checksums() const override { return crcs_; }

 private:
  // Unit: what one thread hashes at a time: of a source's stretch, the part that begins here.
  struct Unit {
    std::size_t source = 0;
    std::uint64_t begin = 0;
  };
  static std::vector<Unit> units_of(std::span<const std::span<const std::byte>> sources);
  std::span<const std::byte> bytes_of(const Unit& unit) const;
  void carry_out(std::size_t index) override;
  void ended() override;

  CopyThreads& threads_;
  const std::vector<std::span<const std::byte>> sources_;
  const std::vector<Unit> units_;  // Enough for whole sources.
  std::span<const Stretch> stretches_;
  std::vector<Crc32> unit_crcs_;
  std::vector<Crc32> crcs_;
  CopyListener& listener_;
};

}  // namespace ckpt::device
