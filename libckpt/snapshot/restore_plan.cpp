#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "format/piece.hpp"
#include "snapshot/restorer.hpp"

namespace ckpt::snapshot {

namespace {

constexpr std::size_t names_listed_max = 5;

// All copies of a part have the same bytes.
bool is_same_part(const std::optional<Piece>& stored, const Target& target) {
  const auto first_copy = [&](std::optional<Piece> piece) {
    if (piece) piece->copy = 0;
    return format::normalized(std::move(piece), target.shape);
  };
  return first_copy(stored) ==
         first_copy(target.piece == nullptr ? std::nullopt : std::optional(*target.piece));
}

std::string describe_part(const Piece* piece) {
  if (piece == nullptr) return "the whole tensor";
  const std::string global = fmt::format("of [{}]", fmt::join(piece->global_shape, ", "));
  if (piece->flat_begin)
    return fmt::format("the part from element {} {}", *piece->flat_begin, global);
  const std::string order = piece->order.empty() ? ""
                                                 : fmt::format(", dimensions in order [{}]",
                                                               fmt::join(piece->order, ", "));
  return fmt::format("the part at [{}] {}{}", fmt::join(piece->offset, ", "), global, order);
}

class RestorePlanner {
 public:
  RestorePlanner(const format::ShardRecord& record, std::span<const Target> targets, Wanted wanted)
      : record_(record), targets_(targets), wanted_(wanted) {}

  Result<RestorePlan> plan();

 private:
  Status index_targets();
  Status check(const format::TensorPlace& place, const Target& target) const;
  Status check_none_is_left() const;
  void add(std::size_t tensor, const Target& target);
  void share(std::size_t tensor, std::size_t other, std::uint64_t offset, std::uint64_t bytes);
  void find_overlaps();
  void sort_into_chunks();
  std::string where() const {
    return fmt::format("step {} of rank {}", number(record_.id.at.step), record_.id.rank);
  }

  const format::ShardRecord& record_;
  const std::span<const Target> targets_;
  const Wanted wanted_;
  std::size_t found_count_ = 0;
  std::unordered_map<std::string_view, std::size_t> target_of_;
  std::map<std::pair<const std::byte*, std::uint64_t>, std::size_t> tensor_at_;
  RestorePlan plan_;
};

Status RestorePlanner::index_targets() {
  target_of_.reserve(targets_.size());
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!target_of_.emplace(targets_[i].name, i).second)
      return fail(Errc::invalid_argument,
                  fmt::format("restore: tensor \"{}\" is registered twice", targets_[i].name));
  }
  return {};
}

Status RestorePlanner::check(const format::TensorPlace& place, const Target& target) const {
  const bool is_same_form =
      place.dtype == target.dtype && std::ranges::equal(place.shape, target.shape);
  if (is_same_form && is_same_part(place.piece, target)) return {};
  if (is_same_form)
    return fail(Errc::invalid_argument,
                fmt::format("restore {}: tensor \"{}\" is {} here and {} there", where(),
                            place.name, describe_part(target.piece),
                            describe_part(place.piece ? &*place.piece : nullptr)));
  return fail(
      Errc::invalid_argument,
      fmt::format("restore {}: tensor \"{}\" is {} here and {} there", where(), place.name,
                  describe(target.dtype, target.shape), describe(place.dtype, place.shape)));
}

Status RestorePlanner::check_none_is_left() const {
  if (targets_.size() == found_count_) return {};
  std::unordered_map<std::string_view, bool> stored;
  for (const auto& place : record_.layout.tensors) stored.emplace(place.name, true);
  std::vector<std::string_view> missing;
  for (const Target& target : targets_)
    if (!stored.contains(target.name)) missing.push_back(target.name);
  const std::size_t count = missing.size();
  missing.resize(std::min(count, names_listed_max));
  return fail(
      Errc::invalid_argument,
      fmt::format("restore {}: {} registered tensor(s) are not in it: \"{}\"{}", where(), count,
                  fmt::join(missing, "\", \""), count > names_listed_max ? ", ..." : ""));
}

void RestorePlanner::add(std::size_t tensor, const Target& target) {
  const format::Extent extent = record_.layout.tensors[tensor].extent;
  if (extent.bytes == 0) return;
  const auto [found, is_first] = tensor_at_.emplace(std::pair(target.data, extent.bytes), tensor);
  if (!is_first) {
    // Tied tensors are written once: two threads would write the same place.
    share(found->second, tensor, 0, extent.bytes);
    return;
  }
  for (std::uint64_t done = 0; done < extent.bytes;) {
    const std::uint64_t offset = extent.offset + done;
    const std::uint64_t room = record_.chunk_bytes - offset % record_.chunk_bytes;
    const std::uint64_t bytes = std::min(room, extent.bytes - done);
    plan_.pieces.push_back({offset, bytes, target.data + done, target.device, tensor});
    done += bytes;
  }
}

void RestorePlanner::share(std::size_t tensor, std::size_t other, std::uint64_t offset,
                           std::uint64_t bytes) {
  const auto& tensors = record_.layout.tensors;
  const std::uint64_t begin = tensors[tensor].extent.offset + offset;
  const std::uint64_t other_begin = tensors[other].extent.offset;
  if (begin != other_begin) plan_.shared.push_back({tensor, other, begin, other_begin, bytes});
}

// In the order of addresses, the tensor that ends last reaches into the next one if any does. All
// that share a byte are so compared with one another.
void RestorePlanner::find_overlaps() {
  std::size_t last = 0;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const auto& [memory, tensor] : tensor_at_) {
    const auto [data, bytes] = memory;
    if (end != nullptr && std::less<>{}(data, end)) {
      const auto reach = static_cast<std::uint64_t>(end - data);
      share(last, tensor, static_cast<std::uint64_t>(data - begin), std::min(reach, bytes));
    }
    if (end != nullptr && !std::less<>{}(end, data + bytes)) continue;
    last = tensor, begin = data, end = data + bytes;
  }
}

void RestorePlanner::sort_into_chunks() {
  // Pieces at one offset are aliases of one tensor, so the order between them does not matter.
  std::sort(
      plan_.pieces.begin(), plan_.pieces.end(),
      [](const RestorePiece& a, const RestorePiece& b) { return a.slot_offset < b.slot_offset; });
  std::size_t piece = 0;
  for (std::size_t chunk = 0; chunk < record_.chunk_crcs.size(); ++chunk) {
    plan_.first_piece.push_back(piece);
    while (piece < plan_.pieces.size() &&
           plan_.pieces[piece].slot_offset / record_.chunk_bytes == chunk)
      ++piece;
  }
  plan_.first_piece.push_back(piece);
}

Result<RestorePlan> RestorePlanner::plan() {
  CKPT_CHECK(format::validate(record_));
  CKPT_CHECK(index_targets());
  const auto& tensors = record_.layout.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = target_of_.find(tensors[i].name);
    if (found == target_of_.end() && wanted_ == Wanted::some_tensors) continue;
    if (found == target_of_.end())
      return fail(
          Errc::invalid_argument,
          fmt::format("restore {}: its tensor \"{}\", {}, is not registered here: register "
                      "it, or leave what is not (leaves_rest), as where another rank has "
                      "it now",
                      where(), tensors[i].name, describe(tensors[i].dtype, tensors[i].shape)));
    const Target& target = targets_[found->second];
    CKPT_CHECK(check(tensors[i], target));
    add(i, target);
    ++found_count_;
  }
  CKPT_CHECK(check_none_is_left());
  find_overlaps();
  sort_into_chunks();
  return std::move(plan_);
}

}  // namespace

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} [{}]", safetensors_name(dtype), fmt::join(shape, ", "));
}

Result<RestorePlan> plan_restore(const format::ShardRecord& record, std::span<const Target> targets,
                                 Wanted wanted) {
  return RestorePlanner(record, targets, wanted).plan();
}

}  // namespace ckpt::snapshot
