// Goal:   a reader keeps of many shards what it needs, and no more; and what it keeps, and each
//         error, is the same whatever the order in which the shards come.
// Method: shards by hand; what is kept is counted, and the index says which pieces it is.
#include "gather/found_pieces.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "base/random.hpp"
#include "format/piece.hpp"
#include "plan/region.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;
using Shape = std::vector<std::uint64_t>;
using format::TensorPlace;
using ByRank = std::vector<std::vector<TensorPlace>>;

TensorPlace whole_place(const std::string& name, const Shape& shape, std::uint64_t offset = 0) {
  TensorPlace place;
  place.name = name;
  place.dtype = DType::u32;
  place.shape.assign(shape.begin(), shape.end());
  place.extent = {offset, 4 * plan::count_of(shape)};
  return place;
}

TensorPlace place_of(const std::string& name, const Shape& global, const Box& box,
                     std::uint64_t offset = 0) {
  TensorPlace place = whole_place(name, box.shape, offset);
  place.piece = Piece{global, box.offset, {}, {}, 0};
  return place;
}

WantedPiece want_of(const std::string& name, const Shape& shape, Region region) {
  WantedPiece wanted;
  wanted.want = {name, DType::u32, shape, std::move(region), {}};
  return wanted;
}

// In this order of ranks.
void add_all(FoundPieces& found, const ByRank& shards, const std::vector<std::uint32_t>& order) {
  for (const std::uint32_t rank : order) {
    Excerpt excerpt;
    excerpt.record = std::make_shared<const format::ShardRecord>();
    excerpt.tensors = shards[rank];
    found.add(rank, std::move(excerpt));
  }
}

std::vector<std::vector<std::uint32_t>> orders_of(std::size_t count) {
  std::vector<std::vector<std::uint32_t>> orders(4, std::vector<std::uint32_t>(count));
  Random random(5);
  for (std::size_t number = 0; number < orders.size(); ++number) {
    std::vector<std::uint32_t>& order = orders[number];
    for (std::uint32_t rank = 0; rank < count; ++rank) order[rank] = rank;
    if (number == 1) std::ranges::reverse(order);
    for (std::size_t i = count; number > 1 && i > 1; --i)
      std::swap(order[i - 1], order[random.below(i)]);
  }
  return orders;
}

std::set<std::uint32_t> holders_of(const plan::PieceIndex& index, const plan::Want& want) {
  std::set<std::uint32_t> holders;
  const auto* tensor = index.find(want.name);
  REQUIRE(tensor != nullptr);
  for (const auto& held : index.overlapping(*tensor, plan::span_of(want.region, want.shape)))
    holders.insert(held.holder);
  return holders;
}

std::set<std::uint32_t> records_of(const FoundPieces& found, std::uint32_t count) {
  std::set<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < count; ++rank)
    if (found.record(rank) != nullptr) ranks.insert(rank);
  return ranks;
}

// The error of these shards, which is the same in each order.
std::string error_of(const ByRank& shards, const Wants& wants, ReaderRank reader = {0, 1}) {
  std::set<std::string> texts;
  for (const auto& order : orders_of(shards.size())) {
    FoundPieces found(wants, reader, std::vector<plan::Holder>(shards.size()));
    add_all(found, shards, order);
    const auto index = found.index();
    texts.insert(index ? "" : index.error().message());
  }
  CHECK(texts.size() == 1);
  return *texts.begin();
}

}  // namespace

TEST_CASE("found pieces: of many shards those are kept that a want overlaps", "[unit][gather]") {
  const Shape shape = {1000, 8};
  ByRank shards(1000);
  for (std::uint64_t rank = 0; rank < 1000; ++rank) {
    shards[rank] = {place_of("rows", shape, Box{{rank, 0}, {1, 8}}),
                    place_of("columns", {8, 1000}, Box{{0, rank}, {8, 1}}, 4096),
                    place_of("unwanted", shape, Box{{rank, 0}, {1, 8}}, 8192)};
  }
  Wants wants;
  wants.pieces = {want_of("rows", shape, Box{{499, 0}, {2, 8}}),
                  want_of("columns", {8, 1000}, Box{{0, 600}, {8, 1}})};
  for (const auto& order : orders_of(shards.size())) {
    FoundPieces found(wants, {3, 500}, std::vector<plan::Holder>(1000));
    CHECK(found.names() == std::vector<std::string>{"columns", "rows"});
    add_all(found, shards, order);
    CHECK(found.piece_count() == 3);
    CHECK(found.record_count() == 3);
    CHECK(records_of(found, 1000) == std::set<std::uint32_t>{499, 500, 600});
    const auto index = found.index();
    REQUIRE(index);
    CHECK(index->size() == 5);  // With one for each tensor, without elements.
    CHECK(holders_of(*index, wants.pieces[0].want) == std::set<std::uint32_t>{499, 500});
    CHECK(holders_of(*index, wants.pieces[1].want) == std::set<std::uint32_t>{600});
  }
}

TEST_CASE("found pieces: parts that are named after their place belong to the tensor",
          "[unit][gather]") {
  const Shape shape = {8, 4};
  TensorPlace range = whole_place("w[28:32]", {4});
  range.piece = Piece{shape, {}, 28, {}, 0};
  const ByRank shards = {{place_of("w[0:4]", shape, Box{{0, 0}, {4, 4}}),
                          place_of("w[6:7]", shape, Box{{6, 0}, {1, 4}}, 4096)},
                         {place_of("w[4:6,0:4]", shape, Box{{4, 0}, {2, 4}}), range},
                         {place_of("w[0:2]", shape, Box{{4, 0}, {4, 4}}),  // Lies elsewhere.
                          whole_place("w[0:8]", shape, 4096)}};            // No part.
  Wants wants;
  wants.pieces = {want_of("w", shape, Box{{0, 0}, {8, 4}})};
  FoundPieces found(wants, {0, 1}, std::vector<plan::Holder>(3));
  add_all(found, shards, {2, 0, 1});
  CHECK(found.piece_count() == 4);
  const auto index = found.index();
  REQUIRE(index);
  CHECK(holders_of(*index, wants.pieces[0].want) == std::set<std::uint32_t>{0, 1});
}

TEST_CASE("found pieces: ranks that contradict each other are an error that no source mends",
          "[unit][gather]") {
  const Shape shape = {8};
  TensorPlace other = place_of("w", shape, Box{{4}, {4}});
  Wants wants;
  wants.pieces = {want_of("w", shape, Box{{0}, {4}})};  // The contradiction is not in it.
  SECTION("in the type") {
    other.dtype = DType::f32;
    const auto error = error_of({{place_of("w", shape, Box{{0}, {4}})}, {other}}, wants);
    CHECK_THAT(error, Contains("invalid argument: tensor \"w\" is U32 [8] as rank 0 saved it, and "
                               "F32 [8] as rank 1 did"));
  }
  SECTION("in the global shape") {
    other = place_of("w", {9}, Box{{4}, {4}});
    const auto error = error_of({{place_of("w", shape, Box{{0}, {4}})}, {other}}, wants);
    CHECK_THAT(error, Contains("U32 [8] as rank 0 saved it, and U32 [9] as rank 1 did"));
  }
}

TEST_CASE("found pieces: a whole tensor of several other ranks is none of them for a new one",
          "[unit][gather]") {
  const ByRank shards = {{}, {whole_place("w", {4})}, {whole_place("w", {4})}};
  Wants wants;
  wants.pieces = {want_of("w", {4}, Box{{0}, {4}})};
  CHECK_THAT(error_of(shards, wants, {0, 3}),
             Contains("unsupported: tensor \"w\" was saved whole by rank 1 and rank 2 of 3"));
  CHECK(error_of(shards, wants, {1, 3}) == "");
}

TEST_CASE("found pieces: two stages that swap their ranks do not keep layers of one name apart",
          "[unit][gather]") {
  const auto layer = [](const char* name) { return whole_place(name, {4}, 16); };
  const auto wanted = [](const char* first) {
    Wants wants;
    wants.pieces = {want_of(first, {4}, Box{{0}, {4}}), want_of("layer", {4}, Box{{0}, {4}})};
    return wants;
  };
  const ByRank shards = {{whole_place("embed", {4}), layer("layer")},
                         {whole_place("head", {4}), layer("layer")}};
  CHECK(error_of(shards, wanted("embed"), {0, 2}) == "");
  CHECK_THAT(
      error_of(shards, wanted("head"), {0, 2}),
      Contains("unsupported: tensor \"layer\" was saved whole by rank 0 and rank 1 of 2, and "
               "rank 0 wants \"head\", which it did not have"));
  const ByRank apart = {{whole_place("embed", {4}), layer("layer.0")},
                        {whole_place("head", {4}), layer("layer.1")}};
  Wants wants;
  wants.pieces = {want_of("head", {4}, Box{{0}, {4}}), want_of("layer.1", {4}, Box{{0}, {4}})};
  CHECK(error_of(apart, wants, {0, 2}) == "");
}

TEST_CASE("found pieces: a range that overlaps a box in its middle is kept", "[unit][gather]") {
  const Shape shape = {4, 8};
  const ByRank shards = {{place_of("w", shape, Box{{0, 0}, {4, 3}})},
                         {place_of("w", shape, Box{{0, 3}, {4, 2}})},
                         {place_of("w", shape, Box{{0, 5}, {4, 3}})}};
  Wants wants;
  wants.pieces = {want_of("w", shape, FlatRange{11, 2})};  // Of row 1: columns 3 and 4.
  FoundPieces found(wants, {0, 1}, std::vector<plan::Holder>(3));
  add_all(found, shards, {0, 1, 2});
  CHECK(records_of(found, 3) == std::set<std::uint32_t>{1});
}

TEST_CASE("found pieces: of many copies those are kept whose ranks follow the reader's",
          "[unit][gather]") {
  const Shape shape = {64};
  ByRank shards(100);
  for (std::uint64_t rank = 0; rank < 100; ++rank)
    shards[rank] = {place_of("norm", shape, Box{{0}, {64}}, 4096 * rank)};
  Wants wants;
  wants.pieces = {want_of("norm", shape, plan::whole(shape))};
  for (const auto& order : orders_of(shards.size())) {
    FoundPieces found(wants, {197, 200}, std::vector<plan::Holder>(100));
    add_all(found, shards, order);
    CHECK(found.piece_count() == copies_kept_max);
    const std::set<std::uint32_t> expected = {97, 98, 99, 0, 1, 2, 3, 4};
    CHECK(records_of(found, 100) == expected);
    const auto index = found.index();
    REQUIRE(index);
    CHECK(holders_of(*index, wants.pieces[0].want) == expected);
    for (const auto& held : index->overlapping(*index->find("norm"), {0, 64}))
      CHECK(held.offset == 4096 * held.holder);
  }
}

TEST_CASE("found pieces: of many copies the nearest are kept", "[unit][gather]") {
  const Shape shape = {64};
  ByRank shards(40);
  std::vector<plan::Holder> holders(40);
  for (std::uint64_t rank = 0; rank < 40; ++rank) {
    shards[rank] = {place_of("norm", shape, Box{{0}, {64}})};
    holders[rank].tier = rank == 3 || rank == 33 ? 0 : rank % 4 == 1 ? 1 : 2;
  }
  Wants wants;
  wants.pieces = {want_of("norm", shape, plan::whole(shape))};
  for (const auto& order : orders_of(shards.size())) {
    FoundPieces found(wants, {10, 20}, holders);
    add_all(found, shards, order);
    CHECK(records_of(found, 40) == std::set<std::uint32_t>{3, 33, 13, 17, 21, 25, 29, 37});
  }
}

TEST_CASE("found pieces: of whole tensors only the reader's is kept, or the only one",
          "[unit][gather]") {
  const Shape shape = {9};
  ByRank shards(50);
  for (std::uint64_t rank = 0; rank < 50; ++rank)
    shards[rank] = {whole_place("each", shape), whole_place("empty", {0})};
  shards[7].push_back(whole_place("one", shape));
  for (const std::uint32_t rank : {20, 31}) shards[rank].push_back(whole_place("two", shape));
  Wants wants;
  wants.pieces = {want_of("each", shape, plan::whole(shape)),
                  want_of("empty", {0}, plan::whole(Shape{0})),
                  want_of("two", shape, plan::whole(shape))};
  Wants of_another;
  of_another.pieces = {want_of("one", shape, plan::whole(shape))};
  for (const auto& order : orders_of(shards.size())) {
    FoundPieces found(wants, {20, 50}, std::vector<plan::Holder>(50));
    add_all(found, shards, order);
    CHECK(records_of(found, 50) == std::set<std::uint32_t>{20});
    const auto index = found.index();
    REQUIRE(index);
    CHECK(holders_of(*index, wants.pieces[0].want) == std::set<std::uint32_t>{20});
    CHECK(index->find("empty") != nullptr);
    CHECK(holders_of(*index, wants.pieces[2].want) == std::set<std::uint32_t>{20});
    FoundPieces only(of_another, {20, 50}, std::vector<plan::Holder>(50));
    add_all(only, shards, order);
    const auto other = only.index();
    REQUIRE(other);
    CHECK(holders_of(*other, of_another.pieces[0].want) == std::set<std::uint32_t>{7});
  }
  shards[3].clear();
  std::swap(shards[0], shards[3]);
  CHECK_THAT(error_of(shards, wants, {20, 49}),
             Contains("\"each\" was saved whole by rank 1 and rank 2 of 50"));
}

TEST_CASE("found pieces: each rank's own tensor may have a shape of its own", "[unit][gather]") {
  const ByRank shards = {{whole_place("own", {4})}, {whole_place("own", {6})}};
  Wants wants;
  wants.pieces = {want_of("own", {6}, plan::whole(Shape{6}))};
  CHECK(error_of(shards, wants, {1, 2}) == "");
  CHECK_THAT(error_of({shards[0], {whole_place("own", {0})}}, wants, {1, 2}),
             Contains("\"own\" is U32 [4] as rank 0 saved it, and U32 [0] as rank 1 did"));
}

TEST_CASE("found pieces: the first ranks that differ are named", "[unit][gather]") {
  const Shape shape = {20, 4};
  const Shape other = {20, 5};
  ByRank shards(20);
  for (std::uint64_t rank = 0; rank < 20; ++rank)
    shards[rank] = {place_of("w", shape, Box{{rank, 0}, {1, 4}})};
  Wants wants;
  wants.pieces = {want_of("w", shape, Box{{0, 0}, {1, 4}})};
  CHECK(error_of(shards, wants) == "");
  for (const std::uint64_t rank : {7, 9, 18})
    shards[rank] = {place_of("w", other, Box{{rank, 0}, {1, 5}})};
  CHECK_THAT(error_of(shards, wants),
             Contains("\"w\" is U32 [20, 4] as rank 0 saved it, and U32 [20, 5] as rank 7 did"));
  shards[0] = {place_of("w", other, Box{{0, 0}, {1, 5}})};
  CHECK_THAT(error_of(shards, wants),
             Contains("\"w\" is U32 [20, 5] as rank 0 saved it, and U32 [20, 4] as rank 1 did"));
  shards[5] = {place_of("v", shape, Box{{20, 0}, {1, 4}})};
  wants.pieces.push_back(want_of("v", shape, Box{{0, 0}, {1, 4}}));
  CHECK_THAT(error_of(shards, wants),
             Contains("\"w\" is U32 [20, 5] as rank 0 saved it, and U32 [20, 4] as rank 1"));
  shards[0] = {place_of("w", shape, Box{{0, 0}, {1, 4}})};
  CHECK_THAT(error_of(shards, wants), Contains("\"v\": a box from 20 of length 1"));
}

TEST_CASE("found pieces: one shape everywhere is known, though it is not the wanted one",
          "[unit][gather]") {
  const Shape shape = {2, 4};
  const ByRank shards = {{place_of("w", shape, Box{{0, 0}, {1, 4}})},
                         {place_of("w", shape, Box{{1, 0}, {1, 4}})}};
  Wants wants;
  wants.pieces = {want_of("w", {2, 5}, plan::whole(Shape{2, 5}))};
  FoundPieces found(wants, {0, 1}, std::vector<plan::Holder>(2));
  add_all(found, shards, {1, 0});
  CHECK(found.piece_count() == 0);
  CHECK(found.record_count() == 0);
  const auto index = found.index();
  REQUIRE(index);
  CHECK(index->find("w")->shape == shape);
}

TEST_CASE("found pieces: the first rank whose shared memory is two tensors is named",
          "[unit][gather]") {
  const Shape shape = {4};
  ByRank shards(6, {whole_place("a", shape), whole_place("b", shape)});
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    for (TensorPlace& place : shards[rank]) {
      place.piece = Piece{{24}, {4 * std::uint64_t{rank}}, {}, {}, 0};
      if (place.name == "b" && rank != 2 && rank != 4) place.alias_of = "a";
    }
  }
  Wants wants;
  wants.pieces = {want_of("a", {24}, plan::whole(Shape{24}))};
  wants.pieces[0].also = {"b"};
  CHECK_THAT(error_of(shards, wants), Contains("\"a\" and \"b\" share memory here") &&
                                          Contains("rank 2 saved \"b\" as a tensor of its own"));
  shards[2].erase(shards[2].begin() + 1);
  shards[4].erase(shards[4].begin() + 1);
  CHECK(error_of(shards, wants) == "");
}

TEST_CASE("found pieces: parts with names of their own are pieces of the tensor",
          "[unit][gather]") {
  const Shape shape = {4, 4};
  const ByRank shards = {{place_of("w[0:2]", shape, Box{{0, 0}, {2, 4}}),
                          place_of("w[3:4]", shape, Box{{3, 0}, {1, 4}}, 4096)},
                         {place_of("w", shape, Box{{2, 0}, {1, 4}})}};
  Wants wants;
  wants.pieces = {want_of("w", shape, Box{{1, 0}, {2, 4}})};
  wants.pieces[0].part_names = {"w[0:2]", "w[3:4]"};
  FoundPieces found(wants, {0, 1}, std::vector<plan::Holder>(2));
  add_all(found, shards, {1, 0});
  CHECK(found.piece_count() == 2);
  const auto index = found.index();
  REQUIRE(index);
  CHECK(holders_of(*index, wants.pieces[0].want) == std::set<std::uint32_t>{0, 1});
}

TEST_CASE("found pieces: the record of a shard that is wanted as it is stays", "[unit][gather]") {
  Wants wants;
  std::vector<std::byte> target(8);
  wants.bytes = {{2, 0, target}};
  FoundPieces found(wants, {0, 1}, std::vector<plan::Holder>(4));
  add_all(found, ByRank(4), {3, 2, 1, 0});
  CHECK(records_of(found, 4) == std::set<std::uint32_t>{2});
}

}  // namespace ckpt::gather
