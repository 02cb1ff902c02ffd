// SlotReadiness: the Layout of the registered tensors, and whether there are Slots for it.
//
//   unasked --ask--> asked --made--> ready
//                      +--cannot be made--> failed --asked again, now and then--> asked
//
// Invariants: the engine is asked for the newest Layout, or for more room than that.
// Threads:    the training thread.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>

#include "client/blob_store.hpp"
#include "client/saved_names.hpp"
#include "client/session_link.hpp"
#include "client/tensor_registry.hpp"
#include "format/layout.hpp"

namespace ckpt::client {

class SlotReadiness {
 public:
  // All are borrowed.
  SlotReadiness(const Options& options, SessionLink& link, const TensorRegistry& registry,
                const BlobStore& blobs)
      : options_(options), link_(link), registry_(registry), blobs_(blobs) {}

  // Makes the Layout of the registered tensors. True: tensors were added, moved or removed, so that
  // a plan of copies is out of date. Only while no capture runs.
  Result<bool> update();
  const format::Layout& layout() const { return layout_; }
  // The layout that a restore is to bring, where captures have only shares of it, or it was saved
  // under other names; else none.
  Result<std::optional<format::Layout>> wanted(const SavedNames& names) const;

  // Asks for the Slots of the newest Layout, and waits for them until the deadline.
  // Errors: exhausted (the budget), unavailable (not ready yet).
  Status ask(Deadline deadline);
  // The same for a save: the engine is not asked again at each step.
  Status ask_for_save(Deadline deadline);
  // Never fails with `exhausted`, which a save reports: a restore may do with the Slots there are.
  Status ask_in_background();
  // Also in the background. Keeps an earlier request for more room than a restore needs, unless the
  // engine has to know the newest Layout: the restore brings what that has.
  Status ask_for_restore(bool wants_layout);
  // A restore has failed, and other Slots may have been made for it.
  void forget_room() { room_asked_ = 0; }

  // The end of a save's wait for its Slots: only the first save of a session waits.
  Deadline save_deadline();

 private:
  Status send(Deadline deadline);

  const Options& options_;
  SessionLink& link_;
  const TensorRegistry& registry_;
  const BlobStore& blobs_;

  format::Layout layout_;
  std::optional<std::uint64_t> registry_version_;  // The one that layout_ is made from.
  bool has_blob_member_ = false;
  bool is_sent_ = false;
  bool has_waited_ = false;       // The one save that may wait for Slots has come.
  std::uint64_t room_asked_ = 0;  // Bytes of each Slot, in the newest request.
  std::optional<Error> failure_;  // Why there are no Slots for the Layout that was sent.
  Deadline next_try_{};
};

}  // namespace ckpt::client
