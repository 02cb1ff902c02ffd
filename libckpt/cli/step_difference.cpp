#include "cli/step_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/assert.hpp"
#include "cli/item_forms.hpp"
#include "format/piece.hpp"
#include "gather/batches.hpp"
#include "plan/region.hpp"

namespace ckpt::cli {

namespace {

using gather::ListedTensor;
using gather::TensorToRead;

// A tensor of one side as it is to be read, and the shape that it then has.
struct Side {
  TensorToRead source;
  std::vector<std::uint64_t> shape;
};

struct Pair {
  std::string name;
  std::optional<std::uint32_t> rank;
  Side one, other;
};

// The forms that were read, by rank.
class FormsOfStep {
 public:
  explicit FormsOfStep(std::shared_ptr<StoredStep> step) : step_(std::move(step)) {}

  Task<Side> side_of(const ListedTensor& tensor, std::optional<std::uint32_t> rank) {
    const auto whole = std::ranges::find_if(tensor.parts, [&](const gather::HeldPart& part) {
      return !part.place->piece && part.place->extent.bytes > 0 && (!rank || part.rank == *rank);
    });
    Side side;
    side.source.name = tensor.name;
    side.source.part_names = tensor.part_names;
    side.source.dtype = tensor.dtype;
    side.source.shape = tensor.shape;
    side.shape = tensor.shape;
    if (whole == tensor.parts.end()) co_return side;
    side.source.rank = whole->rank;
    side.source.dtype = whole->place->dtype;
    side.source.shape = format::global_shape_of({}, whole->place->shape);
    side.shape = side.source.shape;
    if (!forms_.contains(whole->rank)) {
      CKPT_CO_TRY(const auto record, co_await step_->shards->whole_record(whole->rank));
      CKPT_CO_TRY(forms_[whole->rank], co_await read_item_forms(*step_->shards, record));
    }
    const ItemForms& forms = forms_.at(whole->rank);
    if (const auto form = forms.find(tensor.name); form != forms.end()) {
      CKPT_CO_TRY(side.shape, take_form(form->second, side.source));
    }
    co_return side;
  }

 private:
  const std::shared_ptr<StoredStep> step_;
  std::map<std::uint32_t, ItemForms> forms_;
};

// The ranks for which a name is compared: one entry without a number if it is one tensor.
using Ranks = std::vector<std::optional<std::uint32_t>>;
Ranks ranks_of(const ListedTensor& tensor) {
  if (!tensor.is_each_ranks_own()) return {std::nullopt};
  Ranks ranks;
  for (const std::uint32_t rank : tensor.whole_in()) ranks.emplace_back(rank);
  return ranks;
}

class Comparison {
 public:
  Comparison(std::shared_ptr<StoredStep> one, std::shared_ptr<StoredStep> other)
      : one_(one), other_(other), forms_of_one_(one), forms_of_other_(other) {}

  Task<void> match(TensorChoice choice) {
    std::map<std::string_view, const ListedTensor*> others;
    for (const ListedTensor& tensor : other_->tensors) others[tensor.name] = &tensor;
    std::set<std::string_view> seen;
    for (const ListedTensor& tensor : one_->tensors) {
      if (!is_chosen(choice, tensor.name)) continue;
      seen.insert(tensor.name);
      const auto other = others.find(tensor.name);
      if (other == others.end()) {
        add(tensor.name, {}, DifferenceKind::only_in_one);
      } else {
        CKPT_CO_CHECK(co_await match_tensor(tensor, *other->second));
      }
    }
    for (const ListedTensor& tensor : other_->tensors) {
      if (is_chosen(choice, tensor.name) && seen.insert(tensor.name).second)
        add(tensor.name, {}, DifferenceKind::only_in_other);
    }
    has_chosen_ = !seen.empty();
    co_return Status();
  }

  Task<void> compare_values(std::uint64_t buffer_bytes) {
    std::vector<TensorToRead> left, right;
    for (const Pair& pair : pairs_) {
      left.push_back(pair.one.source);
      right.push_back(pair.other.source);
    }
    // Both are cut alike: they have the same shapes in the order in which they are read.
    const auto batches = gather::make_batches(left, buffer_bytes);
    const auto others = gather::make_batches(right, buffer_bytes);
    CKPT_ASSERT(batches.size() == others.size());
    std::vector<ElementDifference> sums(pairs_.size());
    std::vector<std::byte> one, other;
    for (std::size_t number = 0; number < batches.size(); ++number) {
      one.resize(gather::bytes_of(batches[number]));
      other.resize(gather::bytes_of(others[number]));
      CKPT_ASSERT(one.size() == other.size());
      const storage::TransferHooks hooks;
      CKPT_CO_CHECK(co_await gather::read_batch(*one_->shards, left, batches[number], one, hooks));
      CKPT_CO_CHECK(
          co_await gather::read_batch(*other_->shards, right, others[number], other, hooks));
      std::uint64_t at = 0;
      for (const gather::Slice& slice : batches[number]) {
        add_difference(left[slice.tensor].dtype, std::span(one).subspan(at, slice.bytes),
                       std::span(other).subspan(at, slice.bytes), sums[slice.tensor]);
        at += slice.bytes;
      }
    }
    for (std::size_t number = 0; number < pairs_.size(); ++number) {
      if (sums[number].different == 0) continue;
      const Pair& pair = pairs_[number];
      Difference& found = add(pair.name, pair.rank, DifferenceKind::values);
      found.dtype = pair.one.source.dtype;
      found.elements = plan::count_of(pair.one.shape);
      found.values = sums[number];
    }
    result_.tensors_compared = pairs_.size();
    co_return Status();
  }

  Task<void> compare_blobs(TensorChoice choice) {
    if (one_->shards->shard_count() != other_->shards->shard_count()) co_return Status();
    for (std::uint32_t rank = 0; rank < one_->shards->shard_count(); ++rank) {
      const Blobs left = blobs_of(*one_, rank);
      const Blobs right = blobs_of(*other_, rank);
      std::set<std::string> names;
      for (const auto& [name, extent] : left) names.insert(name);
      for (const auto& [name, extent] : right) names.insert(name);
      for (const std::string& name : names) {
        if (!is_chosen(choice, name)) continue;
        has_chosen_ = true;
        const auto here = left.find(name);
        const auto there = right.find(name);
        if (here == left.end()) {
          add(name, rank, DifferenceKind::only_in_other);
        } else if (there == right.end()) {
          add(name, rank, DifferenceKind::only_in_one);
        } else {
          CKPT_CO_CHECK(co_await compare_blob(name, rank, here->second, there->second));
        }
      }
    }
    co_return Status();
  }

  bool has_chosen() const { return has_chosen_; }
  StepDifference result() && {
    std::ranges::sort(result_.differences, [](const auto& left, const auto& right) {
      const bool is_blob = left.kind == DifferenceKind::blob;
      if (is_blob != (right.kind == DifferenceKind::blob)) return !is_blob;
      if (left.name != right.name) return gather::is_before(left.name, right.name);
      return left.rank < right.rank;
    });
    return std::move(result_);
  }

 private:
  using Blobs = std::map<std::string, format::Extent>;

  Difference& add(const std::string& name, std::optional<std::uint32_t> rank, DifferenceKind kind) {
    Difference difference;
    difference.name = name;
    difference.rank = rank;
    difference.kind = kind;
    result_.differences.push_back(std::move(difference));
    return result_.differences.back();
  }

  Task<void> match_tensor(const ListedTensor& tensor, const ListedTensor& counterpart) {
    // Under its other name it is compared once.
    if (!tensor.alias_of.empty() && tensor.alias_of == counterpart.alias_of) co_return Status();
    const Ranks left = ranks_of(tensor);
    const Ranks right = ranks_of(counterpart);
    // One tensor here is compared with that of each rank there.
    const bool is_one = !left.front().has_value();
    const bool is_other_one = !right.front().has_value();
    std::set<std::optional<std::uint32_t>> ranks;
    if (!is_one || is_other_one) ranks.insert(left.begin(), left.end());
    if (!is_other_one) ranks.insert(right.begin(), right.end());
    for (const auto& rank : ranks) {
      const bool is_here = is_one || std::ranges::find(left, rank) != left.end();
      const bool is_there = is_other_one || std::ranges::find(right, rank) != right.end();
      if (!is_here || !is_there) {
        add(tensor.name, rank,
            is_here ? DifferenceKind::only_in_one : DifferenceKind::only_in_other);
        continue;
      }
      Pair pair;
      pair.name = tensor.name;
      pair.rank = rank;
      const auto none = std::optional<std::uint32_t>();
      CKPT_CO_TRY(pair.one, co_await forms_of_one_.side_of(tensor, is_one ? none : rank));
      CKPT_CO_TRY(pair.other,
                  co_await forms_of_other_.side_of(counterpart, is_other_one ? none : rank));
      match_pair(std::move(pair));
    }
    co_return Status();
  }

  void match_pair(Pair pair) {
    if (pair.one.source.dtype != pair.other.source.dtype) {
      Difference& found = add(pair.name, pair.rank, DifferenceKind::type);
      found.one = safetensors_name(pair.one.source.dtype);
      found.other = safetensors_name(pair.other.source.dtype);
    } else if (pair.one.shape != pair.other.shape) {
      Difference& found = add(pair.name, pair.rank, DifferenceKind::shape);
      found.one = fmt::format("[{}]", fmt::join(pair.one.shape, ", "));
      found.other = fmt::format("[{}]", fmt::join(pair.other.shape, ", "));
    } else {
      pairs_.push_back(std::move(pair));
    }
  }

  static Blobs blobs_of(const StoredStep& step, std::uint32_t rank) {
    const format::ShardRecord& record = step.shards->record(rank);
    Blobs blobs;
    for (std::size_t index = 0; index < record.blobs.size(); ++index)
      blobs[record.blob_names[index]] = record.blobs[index];
    return blobs;
  }

  Task<void> compare_blob(std::string name, std::uint32_t rank, format::Extent here,
                          format::Extent there) {
    ++result_.blobs_compared;
    bool is_same = here.bytes == there.bytes;
    if (is_same && here.bytes > 0) {
      CKPT_CO_TRY(const auto one, co_await read_blob(one_, rank, here));
      CKPT_CO_TRY(const auto other, co_await read_blob(other_, rank, there));
      is_same = one == other;
    }
    if (!is_same) add(name, rank, DifferenceKind::blob);
    co_return Status();
  }

  static Task<std::vector<std::byte>> read_blob(std::shared_ptr<StoredStep> step,
                                                std::uint32_t rank, format::Extent extent) {
    std::vector<std::byte> content(extent.bytes);
    gather::WantedBytes wanted;
    wanted.rank = rank;
    wanted.offset = extent.offset;
    wanted.target = content;
    gather::Wants wants;
    wants.bytes.push_back(wanted);
    const gather::ReaderRank reader{rank, step->shards->shard_count()};
    const storage::TransferHooks hooks;
    CKPT_CO_CHECK(co_await gather::read_pieces(*step->shards, reader, std::move(wants), hooks));
    co_return content;
  }

  const std::shared_ptr<StoredStep> one_;
  const std::shared_ptr<StoredStep> other_;
  FormsOfStep forms_of_one_;
  FormsOfStep forms_of_other_;
  std::vector<Pair> pairs_;
  StepDifference result_;
  bool has_chosen_ = false;
};

}  // namespace

std::string_view name_of(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::values:
      return "values";
    case DifferenceKind::type:
      return "type";
    case DifferenceKind::shape:
      return "shape";
    case DifferenceKind::only_in_one:
      return "only in the first";
    case DifferenceKind::only_in_other:
      return "only in the second";
    case DifferenceKind::blob:
      return "blob";
  }
  return "unknown";
}

Task<StepDifference> compare_steps(std::shared_ptr<StoredStep> one,
                                   std::shared_ptr<StoredStep> other, TensorChoice choice,
                                   std::uint64_t buffer_bytes) {
  Comparison comparison(one, other);
  CKPT_CO_CHECK(co_await comparison.match(choice));
  CKPT_CO_CHECK(co_await comparison.compare_values(buffer_bytes));
  CKPT_CO_CHECK(co_await comparison.compare_blobs(choice));
  if (!comparison.has_chosen() && !choice.globs.empty())
    co_return fail(nothing_chosen(choice, one->tensors));
  co_return std::move(comparison).result();
}

}  // namespace ckpt::cli
