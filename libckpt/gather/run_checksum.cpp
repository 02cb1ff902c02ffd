#include "gather/run_checksum.hpp"

#include "base/assert.hpp"
#include "gather/copy_run.hpp"

namespace ckpt::gather {

void RunChecksum::add(std::span<const std::byte> run) {
  if (run.size() < long_run_bytes) return collect(run);
  crc_ = crc32(run, value());
}

Crc32 RunChecksum::value() {
  crc_ = crc32(std::span(short_runs_).first(collected_), crc_);
  collected_ = 0;
  return crc_;
}

void RunChecksum::collect(std::span<const std::byte> run) {
  CKPT_ASSERT(run.size() < long_run_bytes);
  if (run.empty()) return;
  if (collected_ + run.size() > short_runs_.size()) (void)value();
  CKPT_ASSERT(collected_ + run.size() <= short_runs_.size());
  copy_run(std::span(short_runs_).subspan(collected_, run.size()), run.data());
  collected_ += run.size();
}

}  // namespace ckpt::gather
