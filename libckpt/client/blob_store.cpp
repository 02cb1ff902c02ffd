#include "client/blob_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "format/json.hpp"

namespace ckpt::client {

Status BlobStore::check_room(std::string_view name, std::size_t bytes) const {
  if (name.empty() || name.size() > format::name_bytes_max || !format::is_utf8(name))
    return fail(Errc::invalid_argument, fmt::format("blob \"{}\": a name is 1 to {} bytes of UTF-8",
                                                    name.substr(0, 100), format::name_bytes_max));
  std::uint64_t total = bytes;
  for (const auto& [other, blob] : blobs_)
    if (other != name) total += blob.bytes().size();
  if (total > capacity_)
    return fail(Errc::exhausted,
                fmt::format("blob \"{}\" of {} bytes: the blobs need {} bytes together and "
                            "blob_capacity is {}",
                            name, bytes, total, capacity_));
  if (blobs_.size() >= format::blobs_max && !blobs_.contains(name))
    return fail(Errc::exhausted,
                fmt::format("blob \"{}\": at most {} blobs are possible", name, format::blobs_max));
  return {};
}

Status BlobStore::add(std::string name, std::span<std::byte> bytes) {
  if (!bytes.empty() && bytes.data() == nullptr)
    return fail(Errc::invalid_argument, fmt::format("blob \"{}\": its data is null", name));
  const auto found = blobs_.find(name);
  if (found != blobs_.end() && found->second.is_borrowed)
    return fail(Errc::invalid_argument,
                fmt::format("blob \"{}\": a blob of this name was added before", name));
  CKPT_CHECK(check_room(name, bytes.size()));
  Blob& blob = blobs_[std::move(name)];
  blob = Blob{bytes, {}, true};
  rebuild();
  return {};
}

Status BlobStore::set(std::string name, std::span<const std::byte> bytes) {
  if (!bytes.empty() && bytes.data() == nullptr)
    return fail(Errc::invalid_argument, fmt::format("blob \"{}\": its data is null", name));
  const auto found = blobs_.find(name);
  if (found != blobs_.end() && found->second.is_borrowed)
    return fail(
        Errc::invalid_argument,
        fmt::format("blob \"{}\": it was added with add_blob, so change its bytes in place", name));
  CKPT_CHECK(check_room(name, bytes.size()));
  if (found != blobs_.end()) {
    found->second.kept.assign(bytes.begin(), bytes.end());
    return {};
  }
  blobs_[std::move(name)].kept.assign(bytes.begin(), bytes.end());
  rebuild();
  return {};
}

std::optional<std::span<const std::byte>> BlobStore::find(std::string_view name) const {
  const auto found = blobs_.find(name);
  if (found == blobs_.end()) return std::nullopt;
  return found->second.bytes();
}

void BlobStore::rebuild() {
  names_.clear();
  in_order_.clear();
  for (const auto& [name, blob] : blobs_) {
    names_.push_back(name);
    in_order_.push_back(&blob);
  }
  spans_.resize(in_order_.size());
}

std::span<const std::span<const std::byte>> BlobStore::spans() {
  std::ranges::transform(in_order_, spans_.begin(), [](const Blob* blob) { return blob->bytes(); });
  return spans_;
}

std::span<const std::string> BlobStore::names() {
  return names_;
}

Status BlobStore::check(const format::ShardRecord& record) const {
  for (const auto& [name, blob] : blobs_) {
    if (!blob.is_borrowed) continue;
    const auto found = std::ranges::find(record.blob_names, name);
    const std::uint64_t step = number(record.id.at.step);
    if (found == record.blob_names.end())
      return fail(Errc::invalid_argument,
                  fmt::format("restore step {}: blob \"{}\" is not in it", step, name));
    const auto index = static_cast<std::size_t>(found - record.blob_names.begin());
    if (record.blobs[index].bytes != blob.borrowed.size())
      return fail(Errc::invalid_argument,
                  fmt::format("restore step {}: blob \"{}\" has {} bytes here and {} there", step,
                              name, blob.borrowed.size(), record.blobs[index].bytes));
  }
  return {};
}

void BlobStore::keep(const format::ShardRecord& record, std::span<const std::byte> slot) {
  for (std::size_t i = 0; i < record.blobs.size(); ++i) {
    Blob& blob = blobs_[record.blob_names[i]];
    if (blob.is_borrowed) continue;
    const auto bytes = slot.subspan(record.blobs[i].offset, record.blobs[i].bytes);
    blob.kept.assign(bytes.begin(), bytes.end());
  }
  rebuild();
}

void BlobStore::restore(const format::ShardRecord& record, std::span<const std::byte> slot) {
  for (std::size_t i = 0; i < record.blobs.size(); ++i) {
    const auto bytes = slot.subspan(record.blobs[i].offset, record.blobs[i].bytes);
    Blob& blob = blobs_[record.blob_names[i]];
    if (!blob.is_borrowed) {
      blob.kept.assign(bytes.begin(), bytes.end());
    } else if (!bytes.empty()) {
      std::memcpy(blob.borrowed.data(), bytes.data(), bytes.size());
    }
  }
  rebuild();
}

}  // namespace ckpt::client
