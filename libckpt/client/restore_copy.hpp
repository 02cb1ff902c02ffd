// RestoreCopy: copies a verified shard into the registered tensors, or into chosen ones.
//
// Threads: the training thread, helped by the CopyThreads.
#pragma once

#include <chrono>
#include <ckpt/framework.hpp>
#include <ckpt/result.hpp>
#include <cstddef>
#include <functional>
#include <span>

#include "client/blob_store.hpp"
#include "client/device_table.hpp"
#include "client/restore_teller.hpp"
#include "client/saved_names.hpp"
#include "client/tensor_registry.hpp"
#include "format/shard_record.hpp"
#include "snapshot/restorer.hpp"

namespace ckpt::client {

// RestoreTerms: which tensors of a shard go where.
struct RestoreTerms {
  const ChooseTargets* choose = nullptr;  // Null: into the registered tensors.
  SavedNames names;                       // The names in the checkpoint and here.
  bool leaves_rest = false;               // As in RestoreRequest.
};

class RestoreCopy {
 public:
  // All are borrowed.
  struct Parts {
    DeviceTable& devices;
    const TensorRegistry& registry;
    BlobStore& blobs;
    RestoreTeller& teller;
    std::chrono::milliseconds time_max;  // For the copies.
    std::function<void()> before_overwriting;
  };
  explicit RestoreCopy(Parts parts) : parts_(std::move(parts)) {}

  // `slot` holds the shard. Errors: invalid_argument (names or shapes differ), corruption (a
  // checksum), those of `choose`.
  Status run(const format::ShardRecord& record, std::span<const std::byte> slot,
             const RestoreTerms& terms);

 private:
  Status run_chosen(const format::ShardRecord& record, std::span<const std::byte> slot,
                    const ChooseTargets& choose);
  Status copy(const format::ShardRecord& record, std::span<const std::byte> slot,
              const snapshot::RestorePlan& plan);

  const Parts parts_;
};

}  // namespace ckpt::client
