#include "cli/torch_file.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/assert.hpp"
#include "format/torch_pickle_write.hpp"

namespace ckpt::cli {

namespace {

// torch.load wants these beside the tensors and the pickle: order of bytes, version of the format.
constexpr std::string_view byte_order = "little", version = "3\n";
constexpr std::size_t small_entries = 3;

std::vector<format::PickledTensor> described(const ExportFile& file,
                                             const std::vector<Tied>& tied) {
  std::vector<format::PickledTensor> tensors;
  for (std::size_t index = 0; index < file.tensors.size(); ++index) {
    const format::PlainTensor& plain = file.tensors[index].plain;
    format::PickledTensor tensor;
    tensor.name = plain.name;
    tensor.dtype = plain.dtype;
    tensor.shape.assign(plain.shape.begin(), plain.shape.end());
    tensor.storage = std::to_string(index);
    tensor.storage_bytes = plain.bytes;
    tensors.push_back(std::move(tensor));
  }
  for (const Tied& pair : tied) {
    const auto kept = std::ranges::find(tensors, pair.kept, &format::PickledTensor::name);
    if (kept == tensors.end()) continue;
    format::PickledTensor other = *kept;
    other.name = pair.other;
    tensors.push_back(std::move(other));
  }
  return tensors;
}

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Result<TorchFile> TorchFile::make(const ExportFile& file, const std::vector<Tied>& tied) {
  TorchFile made;
  made.pickle_ = format::write_torch_pickle(described(file, tied));
  made.entries_ = {{"data.pkl", made.pickle_.size(), crc32(made.pickle_)},
                   {"byteorder", byte_order.size(), crc32(bytes_of_text(byte_order))},
                   {"version", version.size(), crc32(bytes_of_text(version))}};
  CKPT_ASSERT(made.entries_.size() == small_entries);
  for (std::size_t index = 0; index < file.tensors.size(); ++index)
    made.entries_.push_back({"data/" + std::to_string(index), file.tensors[index].plain.bytes});
  CKPT_TRY(made.end_, format::place_entries(made.entries_));
  return made;
}

Task<void> TorchFile::put(os::File& target, gather::Batch batch, std::span<const std::byte> bytes) {
  for (const gather::Slice& slice : batch) {
    format::FileEntry& entry = entries_.at(small_entries + slice.tensor);
    CKPT_ASSERT(slice.offset + slice.bytes <= entry.bytes);
    const std::span<const std::byte> part = bytes.first(slice.bytes);
    entry.crc = crc32(part, entry.crc);
    CKPT_CO_CHECK(co_await target.write_at(entry.data + slice.offset, part));
    bytes = bytes.subspan(slice.bytes);
  }
  CKPT_ASSERT(bytes.empty());
  co_return Status();
}

Task<void> TorchFile::finish(os::File& target) {
  const std::array<std::span<const std::byte>, small_entries> small = {
      pickle_, bytes_of_text(byte_order), bytes_of_text(version)};
  for (std::size_t index = 0; index < small.size(); ++index)
    CKPT_CO_CHECK(co_await target.write_at(entries_[index].data, small[index]));
  for (const format::FileEntry& entry : entries_) {
    const std::vector<std::byte> header = format::entry_header(entry);
    CKPT_CO_CHECK(co_await target.write_at(entry.header, header));
  }
  const std::vector<std::byte> end = format::archive_end(entries_, end_);
  Status written = co_await target.write_at(end_, end);
  co_return written;
}

}  // namespace ckpt::cli
