// SaveMetrics: the metrics of the next save; they are captured with it as a blob.
//
// Metrics never fail a save: it is worth more than they are.
//
// Threads: the training thread.
#pragma once

#include <ckpt/result.hpp>
#include <string_view>

#include "client/blob_store.hpp"
#include "format/metrics.hpp"

namespace ckpt::client {

class SaveMetrics {
 public:
  // Borrows `blobs`. `are_expected`: the Slots have room for them from the beginning; otherwise the
  // first metric may need new Slots.
  SaveMetrics(BlobStore& blobs, bool are_expected);

  // A number that is not finite is dropped. Errors: invalid_argument (the name), exhausted (more
  // than metrics_max).
  Status set(std::string_view name, double value);
  // Moves them to the blobs of the capture that is about to begin. The metrics of an earlier save,
  // or of a restored step, do not stay there.
  void give_to_save();
  void forget() { metrics_.clear(); }

 private:
  void put(std::string_view text);

  BlobStore& blobs_;
  format::Metrics metrics_;
};

}  // namespace ckpt::client
