// TorchFile: one exported file that torch.load opens: a dictionary of tensors by their names.
//
//   make -> put the slices of all tensors -> finish
//
// The pickle is written here, of plain tensors only. No Python runs, and none is needed to load it
// with weights_only=True.
#pragma once

#include <span>
#include <vector>

#include "cli/export_plan.hpp"
#include "format/archive_file.hpp"
#include "os/file_system.hpp"

namespace ckpt::cli {

class TorchFile {
 public:
  // Tied names of the file's tensors are in the dictionary, too, and share their bytes. Errors:
  // exhausted (too many tensors).
  static Result<TorchFile> make(const ExportFile& file, const std::vector<Tied>& tied);

  // `bytes` are those of the batch's slices, of which each tensor's come in order.
  Task<void> put(os::File& target, gather::Batch batch, std::span<const std::byte> bytes);
  // After all bytes: writes what describes them.
  Task<void> finish(os::File& target);

 private:
  std::vector<std::byte> pickle_;
  std::vector<format::FileEntry> entries_;  // The small ones, then one for each tensor.
  std::uint64_t end_ = 0;
};

}  // namespace ckpt::cli
