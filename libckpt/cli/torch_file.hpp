// TorchFile: one exported file of archives that torch.load opens.
//
// Either it is one archive: a dictionary of tensors by their names. Or each tensor has its own, one
// behind the other, as torch.distributed.checkpoint stores them.
//
//   make -> hash the slices of all tensors, and put them -> put_rest
//   make -> hash the slices of all tensors -> put_rest -> put the slices     (in a bucket, whose
//           parts are sent as soon as nothing of them is missing)
//
// The pickle is written here, of plain tensors only. No Python runs, and none is needed to load it
// with weights_only=True.
#pragma once

#include <span>
#include <vector>

#include "cli/export_plan.hpp"
#include "format/archive_file.hpp"
#include "format/dcp_metadata.hpp"
#include "os/file_system.hpp"

namespace ckpt::cli {

class TorchFile {
 public:
  // Tied names of the file's tensors are in the dictionary, too, and share their bytes. Errors:
  // exhausted (too many tensors).
  static Result<TorchFile> make(const ExportFile& file, const std::vector<Tied>& tied);
  static Result<TorchFile> make_of_each(const ExportFile& file);

  // `bytes` are those of the batch's slices, of which each tensor's come in order.
  void hash(const gather::Batch& batch, std::span<const std::byte> bytes);
  Task<void> put(os::File& target, gather::Batch batch, std::span<const std::byte> bytes) const;
  // After all bytes are hashed: writes what describes them.
  Task<void> put_rest(os::File& target) const;

  std::uint64_t bytes() const { return archives_.back().extent.end(); }

  // For a file with an archive for each tensor: the tensor's entry in `.metadata`.
  format::DcpTensor described(const ExportFile& file, std::size_t tensor) const;

 private:
  struct Archive {
    std::vector<std::byte> pickle;
    std::vector<format::FileEntry> entries;  // The small ones, then one for each tensor.
    std::uint64_t directory = 0;             // Behind the entries, in the archive.
    format::Extent extent;                   // In the file.
  };
  static Result<Archive> make_archive(std::vector<std::byte> pickle,
                                      std::span<const format::PlainTensor> tensors);
  void add(Archive archive);
  const Archive& archive_of(std::size_t tensor) const;
  std::size_t entry_of(std::size_t tensor) const;

  std::vector<Archive> archives_;
};

}  // namespace ckpt::cli
