// Goal:   elements of a declared larger tensor that no rank has are named, and so are ranks that
//         contradict each other; nothing else is.
// Method: lists of tensors by hand, whose ranks have boxes, ranges, all, or the same twice.
#include "gather/coverage.hpp"

#include <catch2/catch.hpp>
#include <deque>

namespace ckpt::gather {
namespace {

struct Listed {
  ListedTensor tensor;
  std::deque<format::TensorPlace> places;

  explicit Listed(std::string name, std::vector<std::uint64_t> shape) {
    tensor.name = std::move(name);
    tensor.dtype = DType::f32;
    tensor.shape = std::move(shape);
  }
  format::TensorPlace& place(std::vector<std::int64_t> shape) {
    format::TensorPlace& place = places.emplace_back();
    place.name = tensor.name;
    place.dtype = tensor.dtype;
    place.shape = std::move(shape);
    place.extent.bytes = 4;
    tensor.parts.push_back({static_cast<std::uint32_t>(tensor.parts.size()), &place});
    return place;
  }
  Listed& rows(std::uint64_t from, std::int64_t count) {
    format::TensorPlace& part = place({count, static_cast<std::int64_t>(tensor.shape[1])});
    part.piece.emplace();
    part.piece->global_shape = tensor.shape;
    part.piece->offset = {from, 0};
    return *this;
  }
  Listed& flat(std::uint64_t from, std::int64_t count) {
    format::TensorPlace& part = place({count});
    part.piece.emplace();
    part.piece->global_shape = tensor.shape;
    part.piece->flat_begin = from;
    return *this;
  }
};

}  // namespace

TEST_CASE("coverage: what no rank has is named, of the first tensor", "[unit][gather]") {
  Listed whole("a", {4, 2}), half("b", {8, 2}), gap("c", {8, 2}), plain("d", {8, 2});
  whole.rows(0, 2).rows(2, 2).rows(1, 2);  // Some of it twice.
  half.rows(0, 4);
  gap.flat(0, 5).flat(6, 10);
  plain.place({8, 2});
  const Missing missing = find_missing({whole.tensor, half.tensor, gap.tensor, plain.tensor});
  CHECK(missing.tensors == 2);
  CHECK(missing.tensor == "b");
  CHECK(missing.what == "b[4:8, :]");
  CHECK_FALSE(missing.is_left_out);
  CHECK(find_missing({whole.tensor, plain.tensor}).tensors == 0);
  CHECK(find_missing({gap.tensor}).tensors == 1);
}

TEST_CASE("coverage: who has all of it makes up for a missing piece", "[unit][gather]") {
  Listed both("a", {8, 2});
  both.rows(0, 4);
  both.place({8, 2});
  CHECK(find_missing({both.tensor}).tensors == 0);
}

TEST_CASE("coverage: ranks that declare other types or global shapes are named", "[unit][gather]") {
  Listed odd("a", {8, 2}), other("b", {8, 2}), plain("c", {8, 2});
  odd.rows(0, 4).rows(4, 4);
  format::TensorPlace& second = odd.places.back();
  SECTION("another type") {
    second.dtype = DType::f64;
    CHECK(find_missing({odd.tensor}).contradiction.find("F64 [8, 2] as rank 1") !=
          std::string::npos);
  }
  SECTION("another global shape") {
    second.piece->global_shape = {9, 2};
  }
  odd.tensor.is_alike = false;
  other.rows(0, 4);
  const Missing missing = find_missing({odd.tensor, other.tensor});
  CHECK(missing.tensors == 2);
  CHECK(missing.tensor == "a");
  CHECK(missing.what.empty());
  CHECK(missing.contradiction.find("tensor \"a\" is F32 [8, 2] as rank 0") != std::string::npos);
  plain.place({8, 2});
  plain.place({3});
  plain.tensor.is_alike = false;
  CHECK(find_missing({plain.tensor}).tensors == 0);  // Each rank's own.
  plain.rows(0, 8);
  CHECK(find_missing({plain.tensor}).tensors == 0);
}

TEST_CASE("coverage: too many pieces are not looked at", "[unit][gather]") {
  Listed many("a", {8, 2});
  many.rows(0, 4);
  const HeldPart part = many.tensor.parts.front();
  many.tensor.parts.resize(coverage_pieces_max + 1, part);
  CHECK(find_missing({many.tensor}).is_left_out);
}

}  // namespace ckpt::gather
