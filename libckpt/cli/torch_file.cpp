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

// Its bytes are the entry `data/KEY` of its archive.
format::PickledTensor pickled(const format::PlainTensor& plain, std::size_t key) {
  format::PickledTensor tensor;
  tensor.name = plain.name;
  tensor.dtype = plain.dtype;
  tensor.shape.assign(plain.shape.begin(), plain.shape.end());
  tensor.storage = std::to_string(key);
  tensor.storage_bytes = plain.bytes;
  return tensor;
}

std::vector<format::PickledTensor> all_pickled(const ExportFile& file,
                                               const std::vector<Tied>& tied) {
  std::vector<format::PickledTensor> tensors;
  for (std::size_t index = 0; index < file.tensors.size(); ++index)
    tensors.push_back(pickled(file.tensors[index].plain, index));
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

Result<TorchFile::Archive> TorchFile::make_archive(std::vector<std::byte> pickle,
                                                   std::span<const format::PlainTensor> tensors) {
  Archive made;
  made.pickle = std::move(pickle);
  made.entries = {{"data.pkl", made.pickle.size(), crc32(made.pickle)},
                  {"byteorder", byte_order.size(), crc32(bytes_of_text(byte_order))},
                  {"version", version.size(), crc32(bytes_of_text(version))}};
  CKPT_ASSERT(made.entries.size() == small_entries);
  for (std::size_t index = 0; index < tensors.size(); ++index)
    made.entries.push_back({"data/" + std::to_string(index), tensors[index].bytes});
  CKPT_TRY(made.directory, format::place_entries(made.entries));
  made.extent.bytes = made.directory + format::archive_end(made.entries, made.directory).size();
  return made;
}

void TorchFile::add(Archive archive) {
  if (!archives_.empty()) archive.extent.offset = archives_.back().extent.end();
  archives_.push_back(std::move(archive));
}

Result<TorchFile> TorchFile::make(const ExportFile& file, const std::vector<Tied>& tied) {
  std::vector<format::PlainTensor> tensors;
  for (const ExportTensor& tensor : file.tensors) tensors.push_back(tensor.plain);
  auto pickle = format::write_torch_pickle(all_pickled(file, tied));
  CKPT_TRY(Archive archive, make_archive(std::move(pickle), tensors));
  TorchFile made;
  made.add(std::move(archive));
  return made;
}

Result<TorchFile> TorchFile::make_of_each(const ExportFile& file) {
  TorchFile made;
  for (const ExportTensor& tensor : file.tensors) {
    auto pickle = format::write_torch_tensor(pickled(tensor.plain, 0));
    CKPT_TRY(Archive archive, make_archive(std::move(pickle), std::span(&tensor.plain, 1)));
    made.add(std::move(archive));
  }
  return made;
}

format::DcpTensor TorchFile::described(const ExportFile& file, std::size_t tensor) const {
  CKPT_ASSERT(archives_.size() == file.tensors.size());
  const format::PlainTensor& plain = file.tensors.at(tensor).plain;
  return {plain.name, plain.dtype, plain.shape, archives_.at(tensor).extent};
}

// A file of one tensor is the same either way.
const TorchFile::Archive& TorchFile::archive_of(std::size_t tensor) const {
  return archives_.at(archives_.size() > 1 ? tensor : 0);
}
std::size_t TorchFile::entry_of(std::size_t tensor) const {
  return small_entries + (archives_.size() > 1 ? 0 : tensor);
}

void TorchFile::hash(const gather::Batch& batch, std::span<const std::byte> bytes) {
  for (const gather::Slice& slice : batch) {
    Archive& archive = archives_.at(archives_.size() > 1 ? slice.tensor : 0);
    format::FileEntry& entry = archive.entries.at(entry_of(slice.tensor));
    entry.crc = crc32(bytes.first(slice.bytes), entry.crc);
    bytes = bytes.subspan(slice.bytes);
  }
  CKPT_ASSERT(bytes.empty());
}

Task<void> TorchFile::put(os::File& target, gather::Batch batch,
                          std::span<const std::byte> bytes) const {
  for (const gather::Slice& slice : batch) {
    const Archive& archive = archive_of(slice.tensor);
    const format::FileEntry& entry = archive.entries.at(entry_of(slice.tensor));
    CKPT_ASSERT(slice.offset + slice.bytes <= entry.bytes);
    const std::uint64_t begin = archive.extent.offset + entry.data;
    CKPT_CO_CHECK(co_await target.write_at(begin + slice.offset, bytes.first(slice.bytes)));
    bytes = bytes.subspan(slice.bytes);
  }
  CKPT_ASSERT(bytes.empty());
  co_return Status();
}

Task<void> TorchFile::put_rest(os::File& target) const {
  for (const Archive& archive : archives_) {
    const std::uint64_t begin = archive.extent.offset;
    const std::array<std::span<const std::byte>, small_entries> small = {
        archive.pickle, bytes_of_text(byte_order), bytes_of_text(version)};
    for (std::size_t index = 0; index < small.size(); ++index)
      CKPT_CO_CHECK(co_await target.write_at(begin + archive.entries[index].data, small[index]));
    for (const format::FileEntry& entry : archive.entries) {
      const std::vector<std::byte> header = format::entry_header(entry);
      CKPT_CO_CHECK(co_await target.write_at(begin + entry.header, header));
    }
    const std::vector<std::byte> end = format::archive_end(archive.entries, archive.directory);
    CKPT_CO_CHECK(co_await target.write_at(begin + archive.directory, end));
  }
  co_return Status();
}

}  // namespace ckpt::cli
