#include "plan/piece_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/assert.hpp"
#include "format/piece.hpp"

namespace ckpt::plan {

namespace {

constexpr std::size_t orders_max = 65'536;

std::string form_of(DType dtype, Shape shape) {
  return fmt::format("{} [{}]", safetensors_name(dtype), fmt::join(shape, ", "));
}

}  // namespace

Status PieceIndex::check(const HeldPiece& piece) {
  if (piece.shape.size() > format::dimensions_max ||
      !format::global_bytes(piece.dtype, piece.shape)) {
    return fail(Errc::invalid_argument, fmt::format("tensor \"{}\": {} is over the limit",
                                                    piece.name, form_of(piece.dtype, piece.shape)));
  }
  const Status inside = format::check_inside(piece.region, piece.shape);
  if (!inside) {
    return fail(Errc::invalid_argument,
                fmt::format("tensor \"{}\": {}", piece.name, inside.error().text()));
  }
  const bool is_range = std::holds_alternative<FlatRange>(piece.region);
  const bool has_order =
      piece.order.empty() || (!is_range && format::is_order(piece.order, piece.shape.size()));
  if (!has_order) {
    return fail(Errc::invalid_argument,
                fmt::format("tensor \"{}\": [{}] is no order of its {} dimensions", piece.name,
                            fmt::join(piece.order, ", "), piece.shape.size()));
  }
  return {};
}

Status PieceIndex::add(const HeldPiece& piece) {
  CKPT_ASSERT(!is_finished_);
  CKPT_CHECK(check(piece));
  CKPT_TRY(Known * known, this->known(piece));
  CKPT_TRY(const std::uint16_t order, number_of(piece.order));
  const bool is_range = std::holds_alternative<FlatRange>(piece.region);
  const FlatRange span = span_of(piece.region, piece.shape);
  known->entries.push_back({span.begin, span.begin + span.count, piece.offset, numbers_.size(),
                            piece.holder, order, is_range});
  known->longest = std::max(known->longest, span.count);
  if (const auto* range = std::get_if<FlatRange>(&piece.region)) {
    numbers_.insert(numbers_.end(), {range->begin, range->count});
  } else {
    const Box& box = std::get<Box>(piece.region);
    numbers_.insert(numbers_.end(), box.offset.begin(), box.offset.end());
    numbers_.insert(numbers_.end(), box.shape.begin(), box.shape.end());
  }
  ++count_;
  return {};
}

Result<PieceIndex::Known*> PieceIndex::known(const HeldPiece& piece) {
  auto [entry, is_new] = tensors_.try_emplace(std::string(piece.name));
  Tensor& tensor = entry->second.tensor;
  if (is_new) {
    tensor = {entry->first, piece.dtype, {piece.shape.begin(), piece.shape.end()}};
    return &entry->second;
  }
  if (tensor.dtype == piece.dtype && std::ranges::equal(tensor.shape, piece.shape))
    return &entry->second;
  return fail(Errc::corruption,
              fmt::format("tensor \"{}\" is {} at holder {}, and {} at one before it", piece.name,
                          form_of(piece.dtype, piece.shape), piece.holder,
                          form_of(tensor.dtype, tensor.shape)));
}

Result<std::uint16_t> PieceIndex::number_of(const std::vector<std::uint8_t>& order) {
  const auto found = std::ranges::find(orders_, order);
  const auto number = static_cast<std::size_t>(found - orders_.begin());
  if (number == orders_max) return fail(Errc::invalid_argument, "too many orders of dimensions");
  if (found == orders_.end()) orders_.push_back(order);
  return static_cast<std::uint16_t>(number);
}

void PieceIndex::finish() {
  for (auto& [name, known] : tensors_) {
    const std::size_t dimensions = known.tensor.shape.size();
    const auto numbers = [&](const Entry& entry) {
      return std::span(numbers_).subspan(entry.numbers, entry.is_range ? 2 : 2 * dimensions);
    };
    std::sort(known.entries.begin(), known.entries.end(), [&](const Entry& a, const Entry& b) {
      const auto head = [](const Entry& it) { return std::tuple(it.begin, it.end, it.is_range); };
      if (head(a) != head(b)) return head(a) < head(b);
      const auto left = numbers(a);
      const auto right = numbers(b);
      if (!std::ranges::equal(left, right))
        return std::ranges::lexicographical_compare(left, right);
      return std::tuple(a.holder, a.offset, a.order) < std::tuple(b.holder, b.offset, b.order);
    });
    known.entries.shrink_to_fit();
  }
  numbers_.shrink_to_fit();
  is_finished_ = true;
}

const PieceIndex::Tensor* PieceIndex::find(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

std::vector<PieceIndex::HeldRegion> PieceIndex::overlapping(const Tensor& tensor,
                                                            const FlatRange& range) const {
  CKPT_ASSERT(is_finished_);
  const auto found = tensors_.find(tensor.name);
  CKPT_ASSERT(found != tensors_.end());
  const Known& known = found->second;
  std::vector<HeldRegion> all;
  if (range.count == 0) return all;
  // None that begins earlier reaches into the range.
  const std::uint64_t earliest = range.begin - std::min(range.begin, known.longest);
  auto entry = std::ranges::lower_bound(known.entries, earliest, {}, &Entry::begin);
  for (; entry != known.entries.end() && entry->begin < range.begin + range.count; ++entry) {
    if (entry->end <= range.begin || entry->begin == entry->end) continue;
    all.push_back({region_of(*entry, tensor.shape.size()), orders_[entry->order], entry->holder,
                   entry->offset});
  }
  return all;
}

Region PieceIndex::region_of(const Entry& entry, std::size_t dimensions) const {
  const auto at = numbers_.begin() + static_cast<std::ptrdiff_t>(entry.numbers);
  if (entry.is_range) return FlatRange{at[0], at[1]};
  const auto middle = at + static_cast<std::ptrdiff_t>(dimensions);
  return Box{{at, middle}, {middle, middle + static_cast<std::ptrdiff_t>(dimensions)}};
}

std::size_t PieceIndex::bytes_used() const {
  std::size_t bytes = numbers_.capacity() * sizeof(std::uint64_t);
  for (const auto& [name, known] : tensors_) {
    bytes += sizeof(known) + 2 * name.capacity() + known.entries.capacity() * sizeof(Entry) +
             known.tensor.shape.capacity() * sizeof(std::uint64_t);
  }
  return bytes;
}

}  // namespace ckpt::plan
