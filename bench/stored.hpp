// Stored: a job's directory on a real disk, where a benchmark flushes steps of one Shard.
#pragma once

#include <memory>
#include <string>

#include "bench/shard.hpp"
#include "flush/flusher.hpp"
#include "storage/site.hpp"

namespace bench {

class Stored {
 public:
  // Empties `directory`.
  Stored(Loop& loop, std::string directory);
  ~Stored();

  // Everything that makes a step durable: checksums compared, data and manifest synced, published.
  void flush(Shard& shard);
  void remove_steps();  // All but the marker, outside of what is measured.

  ckpt::os::FileSystem& files() { return *files_; }
  // The path of the step flushed last.
  std::string step_directory() const { return site_->at(published_); }

 private:
  Loop& loop_;
  std::string directory_;
  std::unique_ptr<ckpt::os::FileSystem> files_;
  std::unique_ptr<ckpt::storage::Site> site_;
  std::unique_ptr<ckpt::flush::Flusher> flusher_;
  std::string published_;
  std::uint64_t attempt_ = 0;
};

}  // namespace bench
