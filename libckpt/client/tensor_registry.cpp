#include "client/tensor_registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace {

Unexpected refuse(std::string_view name, std::string_view problem) {
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
  if (tensor.location == Location::cuda)
    return fail(Errc::unsupported,
                fmt::format("add tensor \"{}\": it lies on GPU {}, and this build has no GPU "
                            "support: pass a copy in host memory",
                            name, tensor.device_index));
  if (tensor.location != Location::host) return refuse(name, "its location is unknown");
  if (bytes > 0 && tensor.data == nullptr) return refuse(name, "its data is null");
  if (tensor.strides.empty()) return {};
  if (tensor.strides.size() != tensor.shape.size())
    return refuse(name, fmt::format("{} strides for {} dimensions", tensor.strides.size(),
                                    tensor.shape.size()));
  if (bytes > 0 && !is_contiguous(tensor))
    return refuse(name,
                  fmt::format("it is a strided view (shape [{}], strides [{}]): make it "
                              "contiguous first",
                              fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", ")));
  return {};
}

}  // namespace

Status TensorRegistry::add(std::string name, TensorRef tensor) {
  if (find(name) != nullptr) return refuse(name, "a tensor of this name was added before");
  if (tensors_.size() >= format::tensors_max)
    return fail(Errc::exhausted, fmt::format("add tensor \"{}\": {} tensors are the most", name,
                                             format::tensors_max));
  // A layout of this tensor alone tells whether name, type and shape can be written.
  const format::TensorSpec spec{name, tensor.dtype, tensor.shape, ""};
  const auto layout = format::make_layout(std::span(&spec, 1), 0, 0);
  if (!layout) return fail(Error(layout.error()).context("add"));
  const std::uint64_t bytes = layout->tensors.front().extent.bytes;
  CKPT_CHECK(check(name, tensor, bytes));
  // A tensor that comes back, at another address for instance, takes its old place: the Layout
  // stays as it is. The places of names that went are kept while there is room for them.
  if (order_of_.size() >= format::tensors_max && !order_of_.contains(name))
    std::erase_if(order_of_, [&](const auto& known) { return !tensors_.contains(known.second); });
  const auto [place, is_new] = order_of_.emplace(name, next_order_);
  if (is_new) ++next_order_;
  tensors_.emplace(place->second, Entry{std::move(name), std::move(tensor), bytes});
  ++version_;
  return {};
}

Status TensorRegistry::remove(std::string_view name) {
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

std::vector<format::TensorSpec> TensorRegistry::specs() const {
  using Identity = std::tuple<const void*, DType, std::vector<std::int64_t>>;
  std::map<Identity, std::string> holders;
  std::vector<format::TensorSpec> specs;
  specs.reserve(tensors_.size());
  for (const auto& [order, entry] : tensors_) {
    format::TensorSpec spec{entry.name, entry.tensor.dtype, entry.tensor.shape, ""};
    if (entry.bytes > 0) {
      Identity identity{entry.tensor.data, entry.tensor.dtype, entry.tensor.shape};
      const auto [holder, is_first] = holders.emplace(std::move(identity), entry.name);
      if (!is_first) spec.alias_of = holder->second;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<snapshot::Source> TensorRegistry::sources(const format::Layout& layout) const {
  std::vector<snapshot::Source> sources;
  std::unordered_map<std::string_view, std::size_t> index_of;
  for (const format::TensorPlace& place : layout.tensors) {
    const Entry* entry = find(place.name);
    CKPT_ASSERT(entry != nullptr);
    const TensorRef& tensor = entry->tensor;
    index_of.emplace(place.name, sources.size());
    sources.push_back({static_cast<const std::byte*>(tensor.data), 0, tensor.guarded});
    if (place.alias_of.empty() || tensor.guarded) continue;
    // Tied to a name that promises less: the bytes are copied as early as the stricter one asks.
    sources[index_of.at(place.alias_of)].is_guarded = false;
  }
  return sources;
}

std::vector<snapshot::Target> TensorRegistry::targets() const {
  std::vector<snapshot::Target> targets;
  targets.reserve(tensors_.size());
  for (const auto& [order, entry] : tensors_)
    targets.push_back({entry.name, entry.tensor.dtype, entry.tensor.shape,
                       static_cast<std::byte*>(entry.tensor.data), 0});
  return targets;
}

}  // namespace ckpt::client
