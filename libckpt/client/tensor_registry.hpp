// TensorRegistry: the registered tensors of a trainer, checked, and which of them are tied.
//
// Two names with the same address, type, shape and piece are tied: the one that was added first
// holds the bytes, the others are its aliases. If other ranks hold the tensor, too, a
// capture has this rank's share of it (capture_share.hpp), and aliases go where the bytes go.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/capture_share.hpp"
#include "client/changes_apart.hpp"
#include "client/held_copies.hpp"
#include "format/layout.hpp"
#include "snapshot/copy_plan.hpp"
#include "snapshot/restorer.hpp"

namespace ckpt::client {

class DeviceTable;

class TensorRegistry {
 public:
  // Without a table, only host tensors can be added.
  explicit TensorRegistry(DeviceTable* devices = nullptr) : devices_(devices) {}

  // Errors: invalid_argument (a duplicate, a strided view, null data, a bad name or shape),
  //         exhausted (too many), and those of DeviceTable::find.
  Status add(std::string name, TensorRef tensor);
  // The entries become tensors called "NAME//ENTRY", all or none.
  Status add_archive(std::string name, std::span<const NamedTensor> entries);
  // A tensor, or an archive with all its entries. Errors: not_found.
  Status remove(std::string_view name);

  // Names that are not trained, registered or not; in place of those of the last call.
  void set_frozen(std::set<std::string, std::less<>> names);

  std::size_t count() const { return tensors_.size(); }
  // Grows with each change; a change of addresses alone makes an equal layout.
  std::uint64_t version() const { return version_; }

  // The tensors as a capture has them.
  std::vector<format::TensorSpec> specs() const;
  // Which of them change from step to step: those that the optimizer owns, or all where it owns
  // none; none that is frozen.
  Changes changes(std::span<const format::TensorSpec> specs) const;
  // All of the tensors, as a restore fills them.
  std::vector<format::TensorSpec> wanted() const;
  // Whether other ranks capture some of them, or parts of them.
  bool has_copies() const;
  // Parallel to `layout.tensors`, which was made from `specs`.
  std::vector<snapshot::Source> sources(const format::Layout& layout) const;
  std::vector<snapshot::Target> targets() const;
  // The bytes of all that are on the host.
  std::vector<std::span<std::byte>> host_memory() const;
  // Tensors that this rank and others divide, whoever captures them; of tied names the first.
  std::vector<HeldCopy> held_copies() const;

 private:
  struct Entry {
    std::size_t device = 0;
    std::string name;
    TensorRef tensor;
    std::uint64_t bytes = 0;
    std::string archive;  // Empty: a tensor of the rank's safetensors file.
    std::uint32_t copy = 0;
    std::uint32_t copies = 0;  // As the piece said. 0: it is captured whole.
  };
  Status add_entry(std::string name, TensorRef tensor, std::string archive);
  const Entry* find(std::string_view name) const;
  Result<std::size_t> device_of(std::string_view name, const TensorRef& tensor);
  std::uint64_t small_limit() const;
  static std::optional<CaptureShare> share(const Entry& entry, std::uint64_t small_limit);

  DeviceTable* devices_;
  std::map<std::uint64_t, Entry> tensors_;  // In the order in which they were first added.
  std::unordered_map<std::string, std::uint64_t> order_of_;  // Also of names that were removed.
  std::map<std::string, std::vector<std::string>, std::less<>> archives_;  // Names of the entries.
  std::set<std::string, std::less<>> frozen_;
  std::uint64_t next_order_ = 0;
  std::uint64_t version_ = 0;
};

}  // namespace ckpt::client
