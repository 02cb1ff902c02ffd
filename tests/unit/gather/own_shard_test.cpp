// Goal:   a rank takes its own shard as it lies there only if it has all that it wants, in the same
//         parts.
// Method: two layouts by hand, which differ in one thing.
#include "gather/own_shard.hpp"

#include <catch2/catch.hpp>

namespace ckpt::gather {
namespace {

format::TensorPlace rows(std::string name, std::uint64_t from, std::uint64_t all = 8) {
  format::TensorPlace place;
  place.name = std::move(name);
  place.shape = {4, 2};
  place.piece.emplace();
  place.piece->global_shape = {all, 2};
  place.piece->offset = {from, 0};
  return place;
}

format::TensorPlace whole(std::string name, std::int64_t length = 3) {
  format::TensorPlace place;
  place.name = std::move(name);
  place.shape = {length};
  return place;
}

}  // namespace

TEST_CASE("own shard: other names and other parts have to be put together", "[unit][gather]") {
  format::Layout saved;
  saved.tensors = {rows("w", 0), whole("bias")};
  format::Layout wanted = saved;
  CHECK_FALSE(has_others(wanted, saved));
  CHECK(has_pieces(wanted));
  wanted.tensors = {whole("bias")};
  CHECK_FALSE(has_others(wanted, saved));  // It says so itself if the rest is no choice.
  CHECK_FALSE(has_pieces(wanted));
  wanted.tensors = {rows("w", 4), whole("bias")};
  CHECK(has_others(wanted, saved));
  wanted.tensors = {rows("w", 4, 9)};
  CHECK_FALSE(has_others(wanted, saved));  // Another tensor: no part of it is the answer.
  wanted.tensors = {whole("bias", 4)};
  CHECK_FALSE(has_others(wanted, saved));
  wanted.tensors = {rows("w", 0), whole("weight")};
  CHECK(has_others(wanted, saved));
  CHECK_FALSE(has_other_parts(wanted, saved));
  wanted.tensors = {rows("w", 4)};
  CHECK(has_other_parts(wanted, saved));
  wanted.tensors = {rows("w", 0)};
  wanted.tensors[0].shape = {2, 4};
  wanted.tensors[0].piece->order = {1, 0};
  CHECK(has_other_parts(wanted, saved));
  wanted.tensors = {rows("v", 0)};
  CHECK(has_other_parts(wanted, saved));
}

TEST_CASE("own shard: a whole tensor that it has in parts alone is lacking", "[unit][gather]") {
  format::Layout saved, wanted;
  saved.tensors = {rows("w[0:4]", 0), rows("w[4:8]", 4), whole("bias")};
  wanted.tensors = {whole("bias"), rows("v", 0), whole("libckpt.room")};
  CHECK_FALSE(lacks_whole_tensors(wanted, saved));
  wanted.tensors = {whole("w")};
  CHECK(lacks_whole_tensors(wanted, saved));
}

TEST_CASE("own shard: a name that it lacks is noticed", "[unit][gather]") {
  format::Layout saved;
  saved.tensors = {whole("a"), whole("b")};
  for (const bool lacks : {false, true}) {
    const std::vector<std::string_view> names{"b", lacks ? "c" : "a"};
    CHECK(lacks_names(saved, names) == lacks);
  }
}

}  // namespace ckpt::gather
