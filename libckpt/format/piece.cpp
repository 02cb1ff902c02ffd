#include "format/piece.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <system_error>

#include "base/assert.hpp"
#include "format/codec.hpp"

namespace ckpt::format {

namespace {

using Shape = std::span<const std::uint64_t>;

bool is_row_major(std::span<const std::uint8_t> order) {
  for (std::size_t d = 0; d < order.size(); ++d)
    if (order[d] != d) return false;
  return true;
}

// The lengths of the box in the global tensor's dimensions. `order` is one, or empty.
std::vector<std::uint64_t> lengths_of(std::span<const std::uint8_t> order,
                                      std::span<const std::int64_t> shape) {
  std::vector<std::uint64_t> lengths(shape.size());
  for (std::size_t place = 0; place < shape.size(); ++place)
    lengths[order.empty() ? place : order[place]] = static_cast<std::uint64_t>(shape[place]);
  return lengths;
}

std::string problem_of_range(const Piece& piece, std::span<const std::int64_t> shape) {
  if (!piece.offset.empty()) return "it has both an offset and a flat range";
  if (!piece.order.empty()) return "a flat range has no order of dimensions";
  if (shape.size() != 1)
    return fmt::format("it is a flat range and has {} dimensions instead of 1", shape.size());
  return {};
}

std::string problem_of_box(const Piece& piece, std::span<const std::int64_t> shape) {
  const std::size_t dimensions = piece.global_shape.size();
  if (shape.size() != dimensions || piece.offset.size() != dimensions)
    return fmt::format("it has {} dimensions and {} offsets, the global tensor has {} dimensions",
                       shape.size(), piece.offset.size(), dimensions);
  if (!piece.order.empty() && !is_order(piece.order, dimensions))
    return fmt::format("[{}] is no order of {} dimensions", fmt::join(piece.order, ", "),
                       dimensions);
  return {};
}

// Takes a number and the letter behind it from the front of the text.
std::optional<std::uint64_t> take_number(std::string_view& text, char behind) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest == end || *rest != behind) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  return number;
}

// Whether "0:4,2:4]" names a range for each of the box's first dimensions that it lies in.
bool lies_in(const Box& box, std::string_view ranges) {
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    const auto begin = take_number(ranges, ':');
    const bool is_last = ranges.find(',') == std::string_view::npos;
    const auto end = take_number(ranges, is_last ? ']' : ',');
    if (!begin || !end || box.offset[d] < *begin || box.end(d) > *end) return false;
    if (is_last) return ranges.empty();
  }
  return false;
}

}  // namespace

bool is_order(std::span<const std::uint8_t> order, std::size_t dimensions) {
  if (order.size() != dimensions || dimensions > dimensions_max) return false;
  std::uint64_t seen = 0;
  for (const std::uint8_t d : order) {
    if (d >= dimensions || (seen >> d & 1) != 0) return false;
    seen |= std::uint64_t{1} << d;
  }
  return true;
}

std::optional<std::uint64_t> global_bytes(DType dtype, Shape shape) {
  std::optional<std::uint64_t> bytes = size_of(dtype);
  for (const std::uint64_t length : shape) {
    bytes = checked_multiply(*bytes, std::max<std::uint64_t>(length, 1));
    if (!bytes) return std::nullopt;
  }
  if (*bytes > global_bytes_max) return std::nullopt;
  return std::ranges::count(shape, 0u) > 0 ? 0 : bytes;
}

Status check_inside(const Region& region, Shape tensor) {
  if (const auto* range = std::get_if<FlatRange>(&region)) {
    const std::uint64_t count =
        std::accumulate(tensor.begin(), tensor.end(), std::uint64_t{1}, std::multiplies<>());
    if (range->begin <= count && range->count <= count - range->begin) return {};
    return fail(Errc::invalid_argument,
                fmt::format("elements {} to {} + {} of a tensor of {}", range->begin, range->begin,
                            range->count, count));
  }
  const Box& box = std::get<Box>(region);
  if (box.offset.size() != tensor.size() || box.shape.size() != tensor.size()) {
    return fail(Errc::invalid_argument,
                fmt::format("a box of {} offsets and {} lengths in a tensor of {} dimensions",
                            box.offset.size(), box.shape.size(), tensor.size()));
  }
  for (std::size_t d = 0; d < tensor.size(); ++d) {
    if (box.offset[d] <= tensor[d] && box.shape[d] <= tensor[d] - box.offset[d]) continue;
    return fail(Errc::invalid_argument,
                fmt::format("a box from {} of length {} in dimension {}, which has {}",
                            box.offset[d], box.shape[d], d, tensor[d]));
  }
  return {};
}

std::string problem_of(const Piece& piece, DType dtype, std::span<const std::int64_t> shape) {
  if (piece.global_shape.size() > dimensions_max)
    return fmt::format("its global shape has {} dimensions where {} are the most",
                       piece.global_shape.size(), dimensions_max);
  if (!global_bytes(dtype, piece.global_shape))
    return fmt::format("its global shape [{}] is too large", fmt::join(piece.global_shape, ", "));
  if (piece.copies > 0 && piece.copy >= piece.copies)
    return fmt::format("it is copy {} of {}, which are counted from 0", piece.copy, piece.copies);
  std::string problem =
      piece.flat_begin ? problem_of_range(piece, shape) : problem_of_box(piece, shape);
  if (!problem.empty()) return problem;
  const Status inside = check_inside(region_of(piece, shape), piece.global_shape);
  return inside ? std::string() : "it is no part of its global tensor: " + inside.error().text();
}

Region region_of(const std::optional<Piece>& piece, std::span<const std::int64_t> shape) {
  if (!piece) return Box{std::vector<std::uint64_t>(shape.size(), 0), lengths_of({}, shape)};
  if (!piece->flat_begin) return Box{piece->offset, lengths_of(piece->order, shape)};
  CKPT_ASSERT(shape.size() == 1);
  return FlatRange{*piece->flat_begin, static_cast<std::uint64_t>(shape.front())};
}

std::vector<std::uint64_t> global_shape_of(const std::optional<Piece>& piece,
                                           std::span<const std::int64_t> shape) {
  return piece ? piece->global_shape : lengths_of({}, shape);
}

std::string_view tensor_name_of(std::string_view name, const std::optional<Piece>& piece,
                                std::span<const std::int64_t> shape) {
  const auto bracket = name.rfind('[');
  if (!piece || bracket == std::string_view::npos || bracket == 0) return name;
  const Region region = region_of(piece, shape);
  const auto* range = std::get_if<FlatRange>(&region);
  const Box box = range != nullptr ? Box{{range->begin}, {range->count}} : std::get<Box>(region);
  return lies_in(box, name.substr(bracket + 1)) ? name.substr(0, bracket) : name;
}

bool is_among(std::span<const std::string> names, std::string_view name,
              const std::optional<Piece>& piece, std::span<const std::int64_t> shape) {
  if (std::ranges::binary_search(names, name, std::less<>())) return true;
  const std::string_view tensor = tensor_name_of(name, piece, shape);
  return tensor != name && std::ranges::binary_search(names, tensor, std::less<>());
}

std::string first_part_name(std::string_view name) {
  return std::string(name) + '[';
}

std::string behind_part_names(std::string_view name) {
  return std::string(name) + static_cast<char>('[' + 1);
}

std::optional<Piece> normalized(std::optional<Piece> piece, std::span<const std::int64_t> shape) {
  if (!piece) return piece;
  if (is_row_major(piece->order)) piece->order.clear();
  piece->copies = 0;
  const bool begins_at_0 = piece->flat_begin.value_or(0) == 0 &&
                           std::ranges::all_of(piece->offset, [](auto at) { return at == 0; });
  const bool is_whole = begins_at_0 && piece->order.empty() && piece->copy == 0 &&
                        piece->global_shape == lengths_of({}, shape);
  if (is_whole) piece.reset();
  return piece;
}

}  // namespace ckpt::format
