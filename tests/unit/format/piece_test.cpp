// Goal:   a piece that is recorded lies inside its global tensor, has one form, and comes back with
//         the layout; every other one is refused by name and number.
// Method: one piece of each kind, then one change for each thing that can be wrong with it, in a
//         request and in a layout that was read.
#include "format/piece.hpp"
#include "format/layout_validation.hpp"

#include <catch2/catch.hpp>

#include "format/layout.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

using Catch::Contains;

TensorSpec box(std::string name = "w") {
  TensorSpec spec = test::tensor(std::move(name), DType::f32, {256, 8});
  spec.piece = Piece{{1024, 16}, {512, 8}, {}, {}, 0};
  return spec;
}

TensorSpec range(std::string name = "r") {
  TensorSpec spec = test::tensor(std::move(name), DType::f32, {1000});
  spec.piece = Piece{{1024, 16}, {}, 15'384, {}, 2};
  return spec;
}

TensorSpec channels_last(std::string name = "c") {
  TensorSpec spec = test::tensor(std::move(name), DType::f16, {4, 5, 6, 3});
  spec.piece = Piece{{8, 3, 5, 6}, {4, 0, 0, 0}, {}, {0, 2, 3, 1}, 0};
  return spec;
}

std::string refusal_of(const TensorSpec& spec) {
  const auto layout = make_layout(std::span(&spec, 1), 0, 0);
  if (layout) return {};
  CHECK(layout.error().code() == Errc::invalid_argument);
  return layout.error().text();
}

}  // namespace

TEST_CASE("piece: boxes, ranges and orders are placed, and read back", "[unit][format]") {
  const auto layout = test::layout_of({box(), range(), channels_last()});
  REQUIRE(validate(layout));
  for (const TensorPlace& place : layout.tensors) REQUIRE(place.piece);
  const auto found = [&](std::string_view name) {
    return *std::ranges::find(layout.tensors, name, &TensorPlace::name);
  };
  CHECK(found("w").piece == box().piece);
  CHECK(region_of(found("w").piece, found("w").shape) == Region(Box{{512, 8}, {256, 8}}));
  CHECK(region_of(found("r").piece, found("r").shape) == Region(FlatRange{15'384, 1000}));
  CHECK(region_of(found("c").piece, found("c").shape) == Region(Box{{4, 0, 0, 0}, {4, 3, 5, 6}}));
  CHECK(global_shape_of(found("c").piece, found("c").shape) ==
        std::vector<std::uint64_t>{8, 3, 5, 6});
}

TEST_CASE("piece: a whole tensor has none, however it was said", "[unit][format]") {
  TensorSpec spec = test::tensor("w", DType::f32, {4, 8});
  const auto placed = [&] { return test::layout_of({spec}).tensors.front().piece; };
  spec.piece = Piece{{4, 8}, {0, 0}, {}, {}, 0};
  CHECK_FALSE(placed());
  spec.piece = Piece{{4, 8}, {0, 0}, {}, {0, 1}, 0};
  CHECK_FALSE(placed());
  CHECK(region_of(placed(), spec.shape) == Region(Box{{0, 0}, {4, 8}}));
  // These are not the same bytes, or not the same part.
  spec.piece = Piece{{4, 8}, {0, 0}, {}, {}, 1};
  CHECK(placed());
  spec.piece = Piece{{8, 4}, {0, 0}, {}, {1, 0}, 0};
  CHECK(placed());
  spec.shape = {32};
  spec.piece = Piece{{4, 8}, {}, 0, {}, 0};
  CHECK(placed());
  spec.shape = {};
  spec.piece = Piece{};
  CHECK_FALSE(placed());
}

TEST_CASE("piece: one that cannot be is refused by name and number", "[unit][format]") {
  TensorSpec spec = box("model.w");
  CHECK(refusal_of(spec).empty());
  std::string text;
  SECTION("behind the end") {
    spec.piece->offset[0] = 769, text = "from 769 of length 256 in dimension 0, which has 1024";
  }
  SECTION("an offset that wraps") {
    spec.piece->offset[1] = UINT64_MAX, text = "of length 8 in dimension 1, which has 16";
  }
  SECTION("too few offsets") {
    spec.piece->offset = {512}, text = "2 dimensions and 1 offsets";
  }
  SECTION("a global tensor of other dimensions") {
    spec.piece->global_shape = {1024, 16, 1}, text = "the global tensor has 3 dimensions";
  }
  SECTION("a global tensor that cannot be counted") {
    spec.piece->global_shape = {UINT64_MAX, 16}, text = "global shape [18446744073709551615, 16]";
  }
  SECTION("a global tensor whose bytes leave no room for a sum") {
    spec.piece->global_shape = {std::uint64_t{1} << 59, 16}, text = "is too large";
  }
  SECTION("a global tensor that cannot be counted, and is empty") {
    spec.piece->global_shape = {UINT64_MAX, UINT64_MAX, 0}, text = "is too large";
  }
  SECTION("a global tensor of too many dimensions") {
    spec.piece->global_shape.assign(33, 1), text = "33 dimensions where 32";
  }
  SECTION("an order that names a dimension twice") {
    spec.piece->order = {1, 1}, text = "[1, 1] is no order of 2 dimensions";
  }
  SECTION("an order of other dimensions") {
    spec.piece->order = {0, 2}, text = "[0, 2] is no order of 2 dimensions";
  }
  SECTION("an order of too few") {
    spec.piece->order = {0}, text = "[0] is no order of 2 dimensions";
  }
  SECTION("a range behind the end") {
    spec = range("model.w");
    spec.piece->flat_begin = 15'385, text = "15385 + 1000 of a tensor of 16384";
  }
  SECTION("a range that wraps") {
    spec = range("model.w");
    spec.piece->flat_begin = UINT64_MAX, text = "of a tensor of 16384";
  }
  SECTION("a range of two dimensions") {
    spec.piece->offset.clear();
    spec.piece->flat_begin = 0, text = "2 dimensions instead of 1";
  }
  SECTION("a range with an offset") {
    spec = range("model.w");
    spec.piece->offset = {0, 0}, text = "both an offset and a flat range";
  }
  SECTION("a range with an order") {
    spec = range("model.w");
    spec.piece->order = {0}, text = "no order";
  }
  SECTION("an entry of an archive") {
    spec.archive = "model.pt";
    spec.name = "model.pt//model.w", text = "archive";
  }
  CHECK_THAT(refusal_of(spec), Contains(text) && Contains("model.w"));
}

TEST_CASE("piece: a tied tensor is the same part", "[unit][format]") {
  TensorSpec tied = box("tied");
  tied.alias_of = "w";
  CHECK(make_layout(std::vector{box(), tied}, 0, 0));
  tied.piece->offset[0] = 0;
  const auto other = make_layout(std::vector{box(), tied}, 0, 0);
  REQUIRE_FALSE(other);
  CHECK_THAT(other.error().text(), Contains("another type, shape or piece"));
}

TEST_CASE("piece: a layout that was read is not believed", "[unit][format]") {
  TensorSpec tied = box("tied");
  tied.alias_of = "w";
  const auto good = test::layout_of({box(), tied});
  REQUIRE(validate(good));
  const auto is_refused = [&](auto change) {
    Layout bad = good;
    change(bad);
    const auto status = validate(bad);
    return !status && status.error().code() == Errc::corruption;
  };
  CHECK_FALSE(is_refused([](Layout&) {}));
  CHECK(is_refused([](Layout& it) { it.tensors[0].piece->offset[0] = 1000; }));
  CHECK(is_refused([](Layout& it) { it.tensors[1].piece->offset[0] = 0; }));
  CHECK(is_refused([](Layout& it) { it.tensors[1].piece.reset(); }));
  CHECK(is_refused([](Layout& it) {
    for (TensorPlace& place : it.tensors) place.piece->order = {0, 1};  // It should have none.
  }));
  CHECK(is_refused([](Layout& it) {
    for (TensorPlace& place : it.tensors) place.piece = Piece{{256, 8}, {0, 0}, {}, {}, 0};
  }));
}

TEST_CASE("piece: its fields are part of the fingerprint and of the record", "[unit][format]") {
  const auto base = test::layout_of({box()});
  const auto changed = [&](auto change) {
    TensorSpec spec = box();
    change(*spec.piece);
    return fingerprint(test::layout_of({spec})) != fingerprint(base);
  };
  CHECK_FALSE(changed([](Piece&) {}));
  CHECK(changed([](Piece& it) { it.offset[0] = 0; }));
  CHECK(changed([](Piece& it) { it.global_shape[0] = 2048; }));
  CHECK(changed([](Piece& it) { it.copy = 1; }));
  Random random(5);
  ShardRecord record = test::sample_record(random);
  record.layout = test::layout_of({box(), range(), channels_last()});
  record.blob_bytes = 0;
  record.blobs.clear();
  record.blob_names.clear();
  record.bytes = record.layout.slot_bytes;
  record.chunk_crcs.assign((record.bytes + record.chunk_bytes - 1) / record.chunk_bytes, 7);
  const auto again = decode_shard_record(encode(record));
  REQUIRE(again);
  CHECK(again->layout == record.layout);
}

TEST_CASE("piece: a part that is named after its box belongs to the tensor of that name",
          "[unit][format]") {
  Piece piece;
  piece.global_shape = {8, 6};
  piece.offset = {4, 2};
  const std::vector<std::int64_t> shape = {4, 2};
  const auto named = [&](std::string_view name) { return tensor_name_of(name, piece, shape); };
  CHECK(named("w[4:8,2:4]") == "w");
  CHECK(named("a[0].w[0:8,2:6]") == "a[0].w");  // A part of the box.
  CHECK(named("w[4:8]") == "w");                // The last dimension is left out.
  for (const std::string_view other :
       {"w", "w[0]", "w[4:8,2:3]", "w[4:7,2:4]", "w[5:8,2:4]", "w[4:8,3:4]", "w[4:8,2:4,0:1]",
        "w[4:8,2:4]x", "w[4:8,2:4", "w[4:8,]", "w[4:8,2]", "w[4;8,2:4]", "w[]", "[4:8,2:4]",
        "w[4:99999999999999999999,2:4]", "w[-4:8,2:4]", ""})
    CHECK(named(other) == other);
  CHECK(tensor_name_of("w[0:4,0:2]", std::nullopt, shape) == "w[0:4,0:2]");
  piece.offset.clear();
  piece.flat_begin = 0;
  const std::vector<std::int64_t> four{4};
  CHECK(tensor_name_of("w[0:4]", piece, four) == "w");
  CHECK(tensor_name_of("w[0:8]", piece, four) == "w");  // A part of the range.
  for (const std::string name : {"w[0:3]", "w[1:4]", "w[0:4,0:2]", "w[0]"})
    CHECK(tensor_name_of(name, piece, four) == name);
}

TEST_CASE("piece: a part outside of its tensor is refused", "[unit][format]") {
  const std::vector<std::uint64_t> shape = {4, 6};
  CHECK(check_inside(Box{{0, 6}, {4, 0}}, shape));
  CHECK(check_inside(FlatRange{24, 0}, shape));
  CHECK_FALSE(check_inside(Box{{0, 0}, {5, 6}}, shape));
  CHECK_FALSE(check_inside(Box{{1, 0}, {4, 6}}, shape));
  CHECK_FALSE(check_inside(Box{{0}, {4}}, shape));
  CHECK_FALSE(check_inside(Box{{UINT64_MAX, 0}, {2, 6}}, shape));
  CHECK_FALSE(check_inside(FlatRange{24, 1}, shape));
  CHECK_FALSE(check_inside(FlatRange{UINT64_MAX, 2}, shape));
}

}  // namespace ckpt::format
