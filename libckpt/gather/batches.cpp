#include "gather/batches.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/assert.hpp"

namespace ckpt::gather {

namespace {

std::vector<std::uint8_t> order_of(const TensorToRead& tensor) {
  if (!tensor.order.empty()) return tensor.order;
  std::vector<std::uint8_t> order(tensor.shape.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  return order;
}

// Cutter: walks through one tensor in the order in which it is wanted. Each slice fills whole rows
// of one dimension, and has one index of each slower one.
class Cutter {
 public:
  Cutter(const TensorToRead& tensor, std::size_t number)
      : tensor_(tensor), number_(number), order_(order_of(tensor)) {
    std::uint64_t bytes = size_of(tensor.dtype);
    row_bytes_.resize(order_.size());
    for (std::size_t level = order_.size(); level-- > 0;) {
      row_bytes_[level] = bytes;
      bytes *= tensor.shape[order_[level]];
    }
    total_ = bytes;
  }

  std::uint64_t left() const { return total_ - at_; }
  bool is_at_begin() const { return at_ == 0; }

  // The next slice, of at most `room` bytes if `room` has place for an element.
  Slice next(std::uint64_t room) {
    CKPT_ASSERT(left() > 0);
    Slice slice;
    slice.tensor = number_;
    slice.offset = at_;
    slice.box = plan::whole(tensor_.shape);
    slice.bytes = total_;
    std::uint64_t rest = at_;
    for (std::size_t level = 0; level < order_.size(); ++level) {
      const std::uint64_t row = row_bytes_[level];
      const std::size_t dimension = order_[level];
      const std::uint64_t index = rest / row;
      rest %= row;
      const bool fits = rest == 0 && (row <= room || level + 1 == order_.size());
      const std::uint64_t rows = std::max<std::uint64_t>(room / row, 1);
      slice.box.offset[dimension] = index;
      slice.box.shape[dimension] =
          fits ? std::min(rows, tensor_.shape[dimension] - index) : std::uint64_t{1};
      slice.bytes = slice.box.shape[dimension] * row;
      if (fits) break;
    }
    at_ += slice.bytes;
    CKPT_ASSERT(at_ <= total_);
    return slice;
  }

 private:
  const TensorToRead& tensor_;
  const std::size_t number_;
  const std::vector<std::uint8_t> order_;
  std::vector<std::uint64_t> row_bytes_;  // For one index of each dimension, in that order.
  std::uint64_t total_ = 0;
  std::uint64_t at_ = 0;
};

WantedPiece wanted(const TensorToRead& tensor, Box box, std::span<std::byte> target) {
  WantedPiece piece;
  piece.want.name = tensor.name;
  piece.part_names = tensor.part_names;
  piece.want.dtype = tensor.dtype;
  piece.want.shape = tensor.shape;
  piece.want.region = std::move(box);
  piece.want.order = tensor.order;
  piece.target = target;
  return piece;
}

}  // namespace

std::uint64_t bytes_of(const Batch& batch) {
  std::uint64_t bytes = 0;
  for (const Slice& slice : batch) bytes += slice.bytes;
  return bytes;
}

std::vector<Batch> make_batches(std::span<const TensorToRead> tensors, std::uint64_t bytes_max) {
  std::vector<Batch> batches;
  std::uint64_t room = 0;
  for (std::size_t number = 0; number < tensors.size(); ++number) {
    Cutter cutter(tensors[number], number);
    while (cutter.left() > 0) {
      const bool is_full = room < size_of(tensors[number].dtype);
      // A tensor is cut only if it does not fit into a buffer of its own.
      const bool begins_buffer = cutter.is_at_begin() && cutter.left() > room;
      if (is_full || begins_buffer) {
        batches.emplace_back();
        room = bytes_max;
      }
      batches.back().push_back(cutter.next(room));
      room -= std::min(room, batches.back().back().bytes);
    }
  }
  return batches;
}

Task<void> read_batch(ShardSource& source, std::span<const TensorToRead> tensors, Batch batch,
                      std::span<std::byte> target, storage::TransferHooks hooks) {
  CKPT_ASSERT(target.size() == bytes_of(batch));
  std::map<std::uint32_t, Wants> by_rank;
  std::uint64_t at = 0;
  for (Slice& slice : batch) {
    const TensorToRead& tensor = tensors[slice.tensor];
    by_rank[tensor.rank].pieces.push_back(
        wanted(tensor, std::move(slice.box), target.subspan(at, slice.bytes)));
    at += slice.bytes;
  }
  for (auto& [rank, wants] : by_rank) {
    const ReaderRank reader{rank, source.shard_count()};
    CKPT_CO_CHECK(co_await read_pieces(source, reader, std::move(wants), hooks));
  }
  co_return Status();
}

Task<void> check_tensors(ShardSource& source, std::span<const TensorToRead> tensors) {
  std::map<std::uint32_t, std::vector<WantedPiece>> by_rank;
  for (const TensorToRead& tensor : tensors)
    by_rank[tensor.rank].push_back(wanted(tensor, plan::whole(tensor.shape), {}));
  for (auto& [rank, wants] : by_rank) {
    const ReaderRank reader{rank, source.shard_count()};
    CKPT_CO_CHECK(co_await check_pieces(source, reader, std::move(wants)));
  }
  co_return Status();
}

}  // namespace ckpt::gather
