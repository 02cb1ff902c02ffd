#include "client/tensor_registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/assert.hpp"
#include "client/device_table.hpp"
#include "format/torch_archive.hpp"
#include "plan/share.hpp"

namespace ckpt::client {

namespace {

Unexpected refuse_tensor(std::string_view name, std::string_view problem) {
  return fail(Errc::invalid_argument, fmt::format("add tensor \"{}\": {}", name, problem));
}

// Strides of dimensions with one element mean nothing, and an empty tensor has no bytes to stride.
bool is_contiguous(const TensorRef& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

Status check(std::string_view name, const TensorRef& tensor, std::uint64_t bytes) {
  if (bytes > 0 && tensor.data == nullptr) return refuse_tensor(name, "its data is null");
  if (tensor.strides.empty()) return {};
  if (tensor.strides.size() != tensor.shape.size())
    return refuse_tensor(name, fmt::format("{} strides for {} dimensions", tensor.strides.size(),
                                           tensor.shape.size()));
  if (bytes > 0 && !is_contiguous(tensor))
    return refuse_tensor(
        name, fmt::format("it is a strided view (shape [{}], strides [{}]): make it "
                          "contiguous first",
                          fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", ")));
  return {};
}

}  // namespace

Status TensorRegistry::add(std::string name, TensorRef tensor) {
  return add_entry(std::move(name), std::move(tensor), {});
}

Status TensorRegistry::add_archive(std::string name, std::span<const NamedTensor> entries) {
  if (name.empty() || name.ends_with('/') ||
      name.find(format::archive_separator) != std::string::npos)
    return fail(Errc::invalid_argument,
                fmt::format("add archive \"{}\": its name is empty, ends in / or has a //", name));
  if (archives_.contains(name))
    return fail(Errc::invalid_argument,
                fmt::format("add archive \"{}\": one of this name was added before", name));
  if (archives_.size() >= archives_max)
    return fail(Errc::exhausted, fmt::format("add archive \"{}\": at most {} archives are possible",
                                             name, archives_max));
  std::vector<std::string> added;
  Status status;
  for (const NamedTensor& entry : entries) {
    std::string full = fmt::format("{}{}{}", name, format::archive_separator, entry.name);
    status = add_entry(full, entry.tensor, name);
    if (!status) break;
    added.push_back(std::move(full));
  }
  if (status) {
    archives_.emplace(std::move(name), std::move(added));
    return status;
  }
  for (const std::string& entry : added) CKPT_CHECK(remove(entry));
  return status;
}

Status TensorRegistry::add_entry(std::string name, TensorRef tensor, std::string archive) {
  if (find(name) != nullptr) return refuse_tensor(name, "a tensor of this name was added before");
  if (tensors_.size() >= format::tensors_max)
    return fail(Errc::exhausted, fmt::format("add tensor \"{}\": at most {} tensors are possible",
                                             name, format::tensors_max));
  if (tensor.piece && !archive.empty())
    return refuse_tensor(name, "an entry of an archive is no piece");
  const format::TensorSpec spec{name, tensor.dtype, tensor.shape, "", "", tensor.piece};
  auto checked = format::check_tensor(spec);
  if (!checked) return fail(std::move(checked).error().context("add"));
  const std::uint64_t bytes = *checked;
  const Piece given = tensor.piece.value_or(Piece());
  const bool is_named_after_place =
      format::tensor_name_of(name, tensor.piece, tensor.shape) != name;
  tensor.piece = format::normalized(tensor.piece, tensor.shape);
  const bool loses_its_name = is_named_after_place && !tensor.piece;
  if ((given.copies > 1 || loses_its_name) && given.copy == 0) {
    // Without a number a whole tensor would be this rank's own, which no other may ask for, nor by
    // the name before the brackets; and the first copy of a part would not be compared.
    Piece numbered = given;
    numbered.copy = 1;
    tensor.piece = format::normalized(std::move(numbered), tensor.shape);
  }
  CKPT_CHECK(check(name, tensor, bytes));
  CKPT_TRY(const std::size_t device, device_of(name, tensor));
  // A tensor that comes back, perhaps at another address, takes its old place, so the Layout does
  // not change. The places of removed names are kept while there is room.
  if (order_of_.size() >= format::tensors_max && !order_of_.contains(name))
    std::erase_if(order_of_, [&](const auto& known) { return !tensors_.contains(known.second); });
  const auto [place, is_new] = order_of_.emplace(name, next_order_);
  if (is_new) ++next_order_;
  tensors_.emplace(place->second, Entry{device, std::move(name), std::move(tensor), bytes,
                                        std::move(archive), given.copy, given.copies});
  ++version_;
  return {};
}

Result<std::size_t> TensorRegistry::device_of(std::string_view name, const TensorRef& tensor) {
  if (devices_ == nullptr && tensor.location == Location::host) return std::size_t{0};
  if (devices_ == nullptr && tensor.location == Location::cuda)
    return fail(Errc::unsupported,
                fmt::format("add tensor \"{}\": it lies on GPU {}, and there are no GPUs here",
                            name, tensor.device_index));
  if (devices_ == nullptr) return refuse_tensor(name, "its location is unknown");
  auto device = devices_->find(tensor);
  if (device) return device;
  return fail(std::move(device).error().context(fmt::format("add tensor \"{}\"", name)));
}

Status TensorRegistry::remove(std::string_view name) {
  const auto archive = archives_.find(name);
  if (archive != archives_.end()) {
    const std::vector<std::string> entries = std::move(archive->second);
    archives_.erase(archive);
    for (const std::string& entry : entries) CKPT_CHECK(remove(entry));
    return {};
  }
  if (find(name) == nullptr)
    return fail(Errc::not_found, fmt::format("remove tensor \"{}\": it was not added", name));
  tensors_.erase(order_of_.at(std::string(name)));
  ++version_;
  return {};
}

const TensorRegistry::Entry* TensorRegistry::find(std::string_view name) const {
  const auto order = order_of_.find(std::string(name));
  if (order == order_of_.end()) return nullptr;
  const auto entry = tensors_.find(order->second);
  return entry == tensors_.end() ? nullptr : &entry->second;
}

std::vector<format::TensorSpec> TensorRegistry::wanted() const {
  using Identity = std::tuple<const void*, DType, std::vector<std::int64_t>, std::optional<Piece>,
                              std::uint32_t>;
  std::map<Identity, std::string> holders;
  std::vector<format::TensorSpec> specs;
  specs.reserve(tensors_.size());
  for (const auto& [order, entry] : tensors_) {
    format::TensorSpec spec{entry.name, entry.tensor.dtype, entry.tensor.shape,
                            "",         entry.archive,      entry.tensor.piece};
    if (entry.bytes > 0 && entry.archive.empty()) {
      Identity identity{entry.tensor.data, entry.tensor.dtype, entry.tensor.shape,
                        entry.tensor.piece, entry.copies};
      const auto [holder, is_first] = holders.emplace(std::move(identity), entry.name);
      if (!is_first) spec.alias_of = holder->second;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

bool TensorRegistry::has_copies() const {
  return std::ranges::any_of(tensors_, [](const auto& each) { return each.second.copies > 1; });
}

std::uint64_t TensorRegistry::small_limit() const {
  std::vector<std::uint64_t> bytes;
  for (const auto& [order, entry] : tensors_)
    if (entry.copies > 1) bytes.push_back(entry.bytes);
  return plan::small_limit(std::move(bytes));
}

std::optional<CaptureShare> TensorRegistry::share(const Entry& entry, std::uint64_t small_limit) {
  if (entry.copies <= 1) return CaptureShare{entry.tensor.shape, entry.tensor.piece, 0};
  return share_of({entry.name, entry.tensor, entry.copy, entry.copies}, small_limit);
}

std::vector<format::TensorSpec> TensorRegistry::specs() const {
  std::vector<format::TensorSpec> specs = wanted();
  if (!has_copies()) return specs;
  const std::uint64_t limit = small_limit();
  std::vector<format::TensorSpec> captured;
  for (format::TensorSpec& spec : specs) {
    const Entry* holder = find(spec.alias_of.empty() ? spec.name : spec.alias_of);
    CKPT_ASSERT(holder != nullptr);
    std::optional<CaptureShare> own = share(*holder, limit);
    if (!own) continue;
    spec.shape = std::move(own->shape);
    spec.piece = std::move(own->piece);
    captured.push_back(std::move(spec));
  }
  return captured;
}

void TensorRegistry::set_frozen(std::set<std::string, std::less<>> names) {
  if (names == frozen_) return;
  frozen_ = std::move(names);
  ++version_;
}

Changes TensorRegistry::changes(std::span<const format::TensorSpec> specs) const {
  const bool has_guarded =
      std::ranges::any_of(tensors_, [](const auto& each) { return each.second.tensor.guarded; });
  Changes changes;
  changes.reserve(specs.size());
  for (const format::TensorSpec& spec : specs) {
    const Entry* entry = find(spec.name);
    CKPT_ASSERT(entry != nullptr);
    const bool is_owned = entry->tensor.guarded || !has_guarded;
    changes.push_back(is_owned && !frozen_.contains(spec.name));
  }
  return changes;
}

std::vector<snapshot::Source> TensorRegistry::sources(const format::Layout& layout) const {
  std::vector<snapshot::Source> sources;
  std::unordered_map<std::string_view, std::size_t> index_of;
  const std::uint64_t limit = small_limit();
  for (const format::TensorPlace& place : layout.tensors) {
    const Entry* entry = find(place.name);
    CKPT_ASSERT(entry != nullptr);
    const TensorRef& tensor = entry->tensor;
    index_of.emplace(place.name, sources.size());
    const std::byte* data = static_cast<const std::byte*>(tensor.data);
    if (place.alias_of.empty() && entry->copies > 1) {
      const std::optional<CaptureShare> own = share(*entry, limit);
      CKPT_ASSERT(own.has_value());
      CKPT_ASSERT(own->offset + place.extent.bytes <= entry->bytes);
      data += own->offset;
    }
    // The host copies all of its tensors at each capture.
    const bool is_frozen = tensor.location == Location::cuda && frozen_.contains(place.name);
    sources.push_back({data, entry->device, tensor.guarded, is_frozen});
    if (place.alias_of.empty() || tensor.guarded) continue;
    // One of the tied names is not guarded: the bytes are copied as early as that one needs.
    sources[index_of.at(place.alias_of)].is_guarded = false;
  }
  return sources;
}

std::vector<HeldCopy> TensorRegistry::held_copies() const {
  std::vector<HeldCopy> copies;
  if (!has_copies()) return copies;
  const std::uint64_t limit = small_limit();
  for (const format::TensorSpec& spec : wanted()) {
    const Entry* entry = find(spec.name);
    CKPT_ASSERT(entry != nullptr);
    const bool is_divided = entry->copies > 1 && entry->bytes > limit;
    if (!is_divided || !spec.alias_of.empty()) continue;
    copies.push_back({entry->name, entry->tensor, entry->bytes, entry->copies, entry->device});
  }
  return copies;
}

std::vector<snapshot::Target> TensorRegistry::targets() const {
  std::vector<snapshot::Target> targets;
  targets.reserve(tensors_.size());
  for (const auto& [order, entry] : tensors_)
    targets.push_back({entry.name, entry.tensor.dtype, entry.tensor.shape,
                       static_cast<std::byte*>(entry.tensor.data), entry.device,
                       entry.tensor.piece ? &*entry.tensor.piece : nullptr});
  return targets;
}

std::vector<std::span<std::byte>> TensorRegistry::host_memory() const {
  std::vector<std::span<std::byte>> memory;
  for (const auto& [order, entry] : tensors_)
    if (entry.device == 0)
      memory.emplace_back(static_cast<std::byte*>(entry.tensor.data), entry.bytes);
  return memory;
}

}  // namespace ckpt::client
