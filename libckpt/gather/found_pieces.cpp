#include "gather/found_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/assert.hpp"
#include "format/piece.hpp"
#include "plan/region.hpp"

namespace ckpt::gather {

namespace {

// A name for the region.
std::vector<std::uint64_t> key_of(const Region& region) {
  if (const auto* range = std::get_if<FlatRange>(&region)) return {0, range->begin, range->count};
  const Box& box = std::get<Box>(region);
  std::vector<std::uint64_t> key{1};
  key.insert(key.end(), box.offset.begin(), box.offset.end());
  key.insert(key.end(), box.shape.begin(), box.shape.end());
  return key;
}

plan::HeldPiece piece_of(std::string_view name, std::uint32_t rank,
                         const format::TensorPlace& tensor, plan::Shape global_shape) {
  plan::HeldPiece piece;
  piece.name = name;
  piece.dtype = tensor.dtype;
  piece.shape = global_shape;
  piece.region = format::region_of(tensor.piece, tensor.shape);
  if (tensor.piece) piece.order = tensor.piece->order;
  piece.holder = rank;
  piece.offset = tensor.extent.offset;
  return piece;
}

// One of this form without elements.
plan::HeldPiece piece_of(std::string_view name, const SeenForm& form) {
  plan::HeldPiece piece;
  piece.name = name;
  piece.dtype = form.dtype;
  piece.shape = form.shape;
  piece.region = FlatRange{0, 0};
  piece.holder = form.rank;
  return piece;
}

void note(std::optional<std::pair<std::uint32_t, Error>>& first, std::uint32_t rank, Error error) {
  if (!first || rank < first->first) first.emplace(rank, std::move(error));
}

}  // namespace

FoundPieces::FoundPieces(const Wants& wants, ReaderRank reader, std::vector<plan::Holder> holders)
    : reader_(reader),
      holders_(std::move(holders)),
      shard_count_(static_cast<std::uint32_t>(holders_.size())) {
  std::map<std::string_view, std::string_view> tensor_of;  // By the name of a part.
  for (const WantedPiece& wanted : wants.pieces) {
    const plan::Want& want = wanted.want;
    wants_[want.name].push_back(&want);
    names_.push_back(want.name);
    names_.insert(names_.end(), wanted.also.begin(), wanted.also.end());
    names_.insert(names_.end(), wanted.part_names.begin(), wanted.part_names.end());
    for (const std::string& name : wanted.also) shared_.emplace(name, want.name);
    for (const std::string& part : wanted.part_names) tensor_of.emplace(part, want.name);
  }
  std::ranges::sort(names_);
  names_.erase(std::ranges::unique(names_).begin(), names_.end());
  for (const std::string& name : names_) {
    const auto part = tensor_of.find(name);
    found_[name].tensor = part == tensor_of.end() ? std::string_view(name) : part->second;
  }
  for (const WantedBytes& wanted : wants.bytes) {
    CKPT_ASSERT(wanted.rank < shard_count_);
    ++records_[wanted.rank].reasons;
  }
}

void FoundPieces::add(std::uint32_t rank, Excerpt excerpt) {
  CKPT_ASSERT(rank < shard_count_);
  KeptRecord& kept = records_[rank];
  CKPT_ASSERT(kept.record == nullptr);
  kept.record = std::move(excerpt.record);
  ++kept.reasons;  // As long as it is looked at.
  check_shared(rank, excerpt.tensors);
  for (const format::TensorPlace& tensor : excerpt.tensors) add_tensor(rank, tensor);
  release(rank);
}

void FoundPieces::add_tensor(std::uint32_t rank, const format::TensorPlace& tensor) {
  auto found = found_.find(tensor.name);
  if (found == found_.end())
    found = found_.find(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
  if (found == found_.end()) return;
  Name& name = found->second;
  name.has_reader = name.has_reader || rank == reader_.rank;
  const std::vector<std::uint64_t> shape = format::global_shape_of(tensor.piece, tensor.shape);
  plan::HeldPiece piece = piece_of(name.tensor, rank, tensor, shape);
  if (const Status good = plan::PieceIndex::check(piece); !good)
    return note(broken_, rank, good.error());
  const SeenForm form{rank, tensor.dtype, shape};
  if (tensor.piece) {
    name.piece_forms.add(form);
    if (is_wanted(piece)) keep(name, std::move(piece));
    return;
  }
  name.whole_forms.add(form);
  if (rank == reader_.rank) name.reader_whole_forms.add(form);
  if (tensor.extent.bytes > 0) add_whole(name, std::move(piece));
}

// A whole tensor of several ranks may be read by these ranks alone.
void FoundPieces::add_whole(Name& name, plan::HeldPiece piece) {
  WholeTensors& wholes = name.whole_tensors;
  const std::uint32_t rank = piece.holder;
  ++wholes.count;
  if (wholes.count == 1) {
    wholes.first_rank = rank;
  } else {
    const std::uint32_t lower = std::min(wholes.first_rank, rank);
    const std::uint32_t higher = std::max(wholes.first_rank, rank);
    wholes.second_rank = wholes.count == 2 ? higher : std::min(wholes.second_rank, higher);
    wholes.first_rank = lower;
    CKPT_ASSERT(wholes.first_rank < wholes.second_rank);
  }
  if (wholes.are_several() && wholes.of_another) {
    release(wholes.of_another->holder);
    --piece_count_;
    wholes.of_another.reset();
  }
  const bool is_own = rank == reader_.rank;
  if ((wholes.are_several() && !is_own) || !is_wanted(piece)) return;
  piece.shape = {};  // The record may go.
  ++records_.at(rank).reasons;
  ++piece_count_;
  (is_own ? wholes.of_reader : wholes.of_another) = std::move(piece);
}

void FoundPieces::keep(Name& name, plan::HeldPiece piece) {
  Copies& copies = name.regions[key_of(piece.region)];
  Location place{piece.holder, piece.offset, std::move(piece.order)};
  const auto at = std::ranges::find_if(
      copies.places, [&](const Location& each) { return is_better(place.rank, each.rank); });
  if (copies.places.empty()) copies.region = std::move(piece.region);
  copies.places.insert(at, std::move(place));
  ++records_.at(piece.holder).reasons;
  ++piece_count_;
  if (copies.places.size() <= copies_kept_max) return;
  const std::uint32_t last = copies.places.back().rank;
  copies.places.pop_back();
  --piece_count_;
  release(last);
  CKPT_ASSERT(copies.places.size() == copies_kept_max);
}

void FoundPieces::release(std::uint32_t rank) {
  const auto kept = records_.find(rank);
  CKPT_ASSERT(kept != records_.end());
  CKPT_ASSERT(kept->second.reasons > 0);
  if (--kept->second.reasons == 0) records_.erase(kept);
}

// A piece of another type or shape is in no plan.
bool FoundPieces::is_wanted(const plan::HeldPiece& piece) const {
  const auto wants = wants_.find(piece.name);
  if (wants == wants_.end()) return false;  // It is only another name of one.
  return std::ranges::any_of(wants->second, [&](const plan::Want* want) {
    return want->dtype == piece.dtype && std::ranges::equal(want->shape, piece.shape) &&
           format::check_inside(want->region, want->shape).has_value() &&
           plan::overlap(piece.region, want->region, piece.shape);
  });
}

bool FoundPieces::is_better(std::uint32_t rank, std::uint32_t than) const {
  const auto turn = [&](std::uint32_t each) {
    return (each + shard_count_ - reader_.rank % shard_count_) % shard_count_;
  };
  const std::uint8_t tier = holders_[rank].tier;
  const std::uint8_t other_tier = holders_[than].tier;
  return tier != other_tier ? tier < other_tier : turn(rank) < turn(than);
}

// One memory here cannot hold two different tensors.
void FoundPieces::check_shared(std::uint32_t rank,
                               const std::vector<format::TensorPlace>& tensors) {
  if (shared_.empty()) return;
  for (const format::TensorPlace& tensor : tensors) {
    const auto other = shared_.find(tensor.name);
    if (other == shared_.end() || tensor.extent.bytes == 0) continue;
    const auto same = std::ranges::find_if(tensors, [&](const auto& each) {
      return format::tensor_name_of(each.name, each.piece, each.shape) == other->second &&
             (each.alias_of == tensor.name || tensor.alias_of == each.name);
    });
    if (same != tensors.end()) continue;
    return note(unshared_, rank,
                Error(Errc::invalid_argument,
                      fmt::format("tensors \"{}\" and \"{}\" share memory here, and rank {} saved "
                                  "\"{}\" as a tensor of its own: restore into two tensors, and "
                                  "tie them then",
                                  other->second, tensor.name, rank, tensor.name)));
  }
}

// A tensor that others saved whole, and of which this rank of the same world had nothing.
std::optional<std::string_view> FoundPieces::newly_wanted() const {
  std::set<std::string_view> own;
  for (const auto& [name, found] : found_)
    if (found.has_reader) own.insert(found.tensor);
  for (const std::string& each : names_) {
    const Name& name = found_.at(each);
    const bool is_of_others = name.whole_tensors.count > 0 && !shared_.contains(each);
    if (is_of_others && !own.contains(name.tensor)) return name.tensor;
  }
  return std::nullopt;
}

Status FoundPieces::check_whole() const {
  const bool is_same_world = reader_.world_size == shard_count_;
  // Then its place among the ranks is another one, as when the stages of a pipeline swap: what it
  // saved itself may be another tensor of the same name.
  const auto taken = is_same_world ? newly_wanted() : std::nullopt;
  for (const std::string& each : names_) {
    const Name& name = found_.at(each);
    const WholeTensors& wholes = name.whole_tensors;
    const bool has_other = name.reader_whole_forms.first() || name.piece_forms.first();
    if (!wholes.are_several() || (is_same_world && has_other && !taken)) continue;
    const std::string now =
        !is_same_world ? fmt::format("there are {} ranks now", reader_.world_size)
        : has_other
            ? fmt::format("rank {} wants \"{}\", which it did not have", reader_.rank, *taken)
            : fmt::format("rank {}, which did not have it, wants it now", reader_.rank);
    return fail(Errc::unsupported,
                fmt::format("tensor \"{}\" was saved whole by rank {} and rank {} of {}, and {}: "
                            "nothing says whether these are copies, or which rank goes on with "
                            "which; save copies as pieces with a number each",
                            each, wholes.first_rank, wholes.second_rank, shard_count_, now));
  }
  return {};
}

// Makes each tensor known that some shard has, also where no piece of it is kept.
Status FoundPieces::add_forms(plan::PieceIndex& index) const {
  std::map<std::string_view, SeenForms> forms;  // By tensor.
  for (const std::string& each : names_) {
    const Name& name = found_.at(each);
    SeenForms& seen = forms[name.tensor];
    seen.add(name.piece_forms);
    seen.add(name.whole_tensors.are_several() ? name.reader_whole_forms : name.whole_forms);
  }
  FirstError first = broken_;
  for (const auto& [tensor, seen] : forms) {
    if (!seen.first()) continue;
    CKPT_CHECK(index.add(piece_of(tensor, *seen.first())));
    if (!seen.other()) continue;
    note(first, seen.other()->rank, Error(Errc::invalid_argument, contradiction_of(tensor, seen)));
  }
  if (first) return fail(std::move(first->second));
  return {};
}

Result<plan::PieceIndex> FoundPieces::index() const {
  if (unshared_) return fail(Error(unshared_->second));
  CKPT_CHECK(check_whole());
  plan::PieceIndex index;
  CKPT_CHECK(add_forms(index));
  for (const std::string& each : names_) {
    const Name& name = found_.at(each);
    const plan::PieceIndex::Tensor* const tensor = index.find(name.tensor);
    if (tensor == nullptr) continue;
    plan::HeldPiece piece;
    piece.name = name.tensor;
    piece.dtype = tensor->dtype;
    piece.shape = tensor->shape;
    for (const auto& [key, copies] : name.regions) {
      piece.region = copies.region;
      for (const Location& place : copies.places) {
        piece.holder = place.rank;
        piece.offset = place.offset;
        piece.order = place.order;
        CKPT_CHECK(index.add(piece));
      }
    }
    for (const auto* whole : {&name.whole_tensors.of_reader, &name.whole_tensors.of_another}) {
      if (!*whole) continue;
      piece.region = (*whole)->region;
      piece.holder = (*whole)->holder;
      piece.offset = (*whole)->offset;
      piece.order.clear();
      CKPT_CHECK(index.add(piece));
    }
  }
  index.finish();
  return index;
}

std::shared_ptr<const format::ShardRecord> FoundPieces::record(std::uint32_t rank) const {
  const auto kept = records_.find(rank);
  return kept == records_.end() ? nullptr : kept->second.record;
}

}  // namespace ckpt::gather
