#include "snapshot/copy_plan.hpp"

#include <algorithm>
#include <tuple>

#include "base/assert.hpp"

namespace ckpt::snapshot {

namespace {

// Part: one source's bytes in the Slot, before they are cut at the Chunks.
struct Part {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Source source;
};

std::vector<Part> parts_in_order(const format::Layout& layout, std::span<const Source> sources,
                                 std::span<const std::byte> header) {
  CKPT_ASSERT(sources.size() == layout.tensors.size());
  std::vector<Part> parts;
  parts.reserve(layout.tensors.size() + 1);
  if (!header.empty()) parts.push_back({0, header.size(), {header.data(), 0, false}});
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const format::TensorPlace& place = layout.tensors[i];
    if (!place.alias_of.empty() || place.extent.bytes == 0) continue;
    CKPT_ASSERT(sources[i].data != nullptr);
    parts.push_back({place.extent.offset, place.extent.bytes, sources[i]});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.offset < b.offset; });
  return parts;
}

class Planner {
 public:
  explicit Planner(std::uint64_t chunk_bytes) { plan_.chunk_bytes = chunk_bytes; }

  void add(const Part& part) {
    CKPT_ASSERT(part.offset == plan_.bytes);
    for (std::uint64_t done = 0; done < part.bytes;) {
      const std::uint64_t room = plan_.chunk_bytes - plan_.bytes % plan_.chunk_bytes;
      const std::uint64_t bytes = std::min(room, part.bytes - done);
      const std::byte* data = part.source.data == nullptr ? nullptr : part.source.data + done;
      add_piece({data, plan_.bytes, bytes}, run_of(part.source));
      plan_.bytes += bytes;
      done += bytes;
    }
  }
  void fill_with_zeros_to(std::uint64_t offset) {
    CKPT_ASSERT(offset >= plan_.bytes);
    add({plan_.bytes, offset - plan_.bytes, {}});
  }
  CopyPlan take();

 private:
  std::size_t run_of(const Source& source) {
    auto& runs = plan_.runs;
    const bool is_frozen = source.is_guarded && source.is_frozen;
    const auto found = std::find_if(runs.begin(), runs.end(), [&](const PlannedRun& run) {
      return run.device == source.device && run.is_guarded == source.is_guarded &&
             run.is_frozen == is_frozen;
    });
    if (found != runs.end()) return static_cast<std::size_t>(found - runs.begin());
    runs.push_back({source.device, source.is_guarded, is_frozen, {}});
    return runs.size() - 1;
  }

  void add_piece(const device::CopyPiece& piece, std::size_t run_index) {
    device::CopyList& list = plan_.runs[run_index].list;
    const bool is_new_chunk = piece.slot_offset % plan_.chunk_bytes == 0;
    if (is_new_chunk || last_run_ != run_index) {
      plan_.in_order.push_back({run_index, list.strips.size(), 0});
      list.strips.push_back({piece.slot_offset, 0, list.pieces.size(), 0});
      last_run_ = run_index;
    }
    device::Strip& strip = list.strips.back();
    strip.bytes += piece.bytes;
    plan_.in_order.back().bytes += piece.bytes;
    ++strip.piece_count;
    list.pieces.push_back(piece);
  }

  CopyPlan plan_;
  std::size_t last_run_ = SIZE_MAX;
};

CopyPlan Planner::take() {
  // Unguarded runs come first, and frozen ones last: most of those need no copies, and looking at
  // them must not keep others back until the guard. The places in the Slot's order are then
  // renumbered to match.
  std::vector<std::size_t> order(plan_.runs.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const PlannedRun& first = plan_.runs[a];
    const PlannedRun& second = plan_.runs[b];
    return std::tuple(first.is_guarded, first.is_frozen, a) <
           std::tuple(second.is_guarded, second.is_frozen, b);
  });
  std::vector<PlannedRun> runs;
  std::vector<std::size_t> place_of(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place_of[order[i]] = i;
    runs.push_back(std::move(plan_.runs[order[i]]));
  }
  plan_.runs = std::move(runs);
  for (StripPlace& place : plan_.in_order) place.run = place_of[place.run];
  return std::move(plan_);
}

}  // namespace

CopyPlan plan_copies(const format::Layout& layout, std::span<const Source> sources,
                     std::span<const std::byte> header, std::uint64_t chunk_bytes) {
  CKPT_ASSERT(chunk_bytes > 0);
  Planner planner(chunk_bytes);
  for (const Part& part : parts_in_order(layout, sources, header)) {
    planner.fill_with_zeros_to(part.offset);
    planner.add(part);
  }
  planner.fill_with_zeros_to(format::covered_bytes(layout, 0));
  return planner.take();
}

void ChunkChecksums::clear() {
  bytes_ = 0;
  crcs_.clear();
}

void ChunkChecksums::add(Crc32 crc, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t in_chunk = bytes_ % chunk_bytes_;
  CKPT_ASSERT(in_chunk + bytes <= chunk_bytes_);
  if (in_chunk == 0) {
    crcs_.push_back(crc);
  } else {
    crcs_.back() = crc32_combine(crcs_.back(), crc, bytes);
  }
  bytes_ += bytes;
}

}  // namespace ckpt::snapshot
