// Goal:   a layout is a legal safetensors file for any tensors, and its header changes in place.
// Method: sizes around a page, odd types, zero sizes, no dimensions, aliases; the header is read
//         back by the validating parser; then wrong requests and broken layouts, one by one.
#include "format/layout.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "format/layout_validation.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_image.hpp"
#include "sample.hpp"

namespace ckpt::format {

using test::layout_of;
using test::tensor;

namespace {

HeaderFacts facts_of(std::string job = "gpt2") {
  return {std::move(job), to_hex(Digest{1, 2}), 3, Step{900}, 7, 8};
}

SafetensorsImage image_of(const Layout& layout, const HeaderFacts& facts) {
  auto header = render_header(layout, facts);
  REQUIRE(header);
  CHECK(header->size() == layout.members[0].header_bytes);
  auto image = parse_safetensors(*header, layout.members[0].extent.bytes);
  if (!image) FAIL(image.error().message());
  return std::move(image).value();
}

Errc code_of(std::vector<TensorSpec> tensors) {
  const auto layout = make_layout(tensors, 0, 0);
  return layout ? Errc{} : layout.error().code();
}

}  // namespace

TEST_CASE("layout: whole pages first as given, then by falling element size", "[unit][format]") {
  const auto layout =
      layout_of({tensor("byte", DType::u8, {3}), tensor("page", DType::u8, {4096}),
                 tensor("half", DType::f16, {5}), tensor("long", DType::i64, {}),
                 tensor("pages", DType::f32, {2, 1024}), tensor("float", DType::f32, {1025})});
  std::vector<std::string> names;
  for (const auto& place : layout.tensors) names.push_back(place.name);
  CHECK(names == std::vector<std::string>{"page", "pages", "long", "float", "half", "byte"});
  for (const auto& place : layout.tensors) CHECK(place.extent.offset % size_of(place.dtype) == 0);
  CHECK(layout.tensors[0].extent.offset % page_bytes == 0);
  CHECK(layout.slot_bytes % page_bytes == 0);
}

TEST_CASE("layout: the header that is rendered reads back as the layout", "[unit][format]") {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const auto layout = test::sample_layout(random, 3);
    REQUIRE(validate(layout));
    const auto image = image_of(layout, facts_of());
    std::vector<ImageTensor> expected;
    for (const auto& place : layout.tensors)
      if (place.alias_of.empty())
        expected.push_back({place.name, place.dtype, place.shape, place.extent});
    // Tensors of no bytes share an offset, and may stand in any order.
    const auto by_name = [](const auto& left, const auto& right) { return left.name < right.name; };
    auto found = image.tensors;
    std::sort(found.begin(), found.end(), by_name);
    std::sort(expected.begin(), expected.end(), by_name);
    CHECK(found == expected);
  }
}

TEST_CASE("layout: sizes around a page", "[unit][format]") {
  for (const std::int64_t bytes : {0, 1, 4095, 4096, 4097, 8192}) {
    CAPTURE(bytes);
    const auto layout = layout_of({tensor("t", DType::u8, {bytes})});
    REQUIRE(layout.tensors.size() == 1);
    CHECK(layout.tensors[0].extent.bytes == static_cast<std::uint64_t>(bytes));
    CHECK(layout.members[0].extent.bytes ==
          layout.members[0].header_bytes + static_cast<std::uint64_t>(bytes));
    CHECK(validate(layout));
  }
}

TEST_CASE("layout: no tensors at all is still a file", "[unit][format]") {
  const auto layout = layout_of({});
  CHECK(layout.slot_bytes == page_bytes);
  CHECK(image_of(layout, facts_of()).tensors.empty());
}

TEST_CASE("layout: blobs stand behind, on a page of their own", "[unit][format]") {
  const auto layout = layout_of({tensor("t", DType::u8, {1})}, 5000, 12);
  REQUIRE(layout.members.size() == 2);
  CHECK(layout.members[0].file_name == "rank-00012.safetensors");
  CHECK(layout.members[1].file_name == "rank-00012.blobs");
  CHECK(layout.members[1].extent == Extent{8192, 5000});
  CHECK(layout.slot_bytes == 16384);
  CHECK(blob_member(layout) == 1u);
  CHECK(covered_bytes(layout, 0) == 8192);
  CHECK(covered_bytes(layout, 1) == 12288);
  CHECK(covered_bytes(layout, 4096) == 12288);
  CHECK(covered_bytes(layout, 5000) == 16384);
}

TEST_CASE("layout: tied tensors share bytes and are named in the metadata", "[unit][format]") {
  const auto layout =
      layout_of({tensor("head\"", DType::f32, {3}, "embed"), tensor("embed", DType::f32, {3})});
  REQUIRE(layout.tensors.size() == 2);
  CHECK(layout.tensors[1].name == "head\"");
  CHECK(layout.tensors[1].extent == layout.tensors[0].extent);
  const auto image = image_of(layout, facts_of());
  CHECK(image.tensors.size() == 1);
  const auto& [key, value] = image.metadata.back();
  CHECK(key == "libckpt.aliases");
  CHECK(nlohmann::json::parse(value) == nlohmann::json{{"head\"", "embed"}});
}

TEST_CASE("layout: the header says whose it is, at any length of the names", "[unit][format]") {
  const auto layout = layout_of({tensor("t", DType::bf16, {2, 2})});
  for (const auto& job : {std::string(), std::string("gpt2"), std::string(128, '\x01')}) {
    const auto image = image_of(layout, facts_of(job));
    const std::vector<std::pair<std::string, std::string>> expected = {
        {"format", "pt"},
        {"timeline", "00000000000000000003"},
        {"step", "00000000000000000900"},
        {"job", job},
        {"run", "00000000000000010000000000000002"},
        {"rank", "7"},
        {"world_size", "8"}};
    CHECK(image.metadata == expected);
  }
  CHECK(render_header(layout, facts_of(std::string(129, 'x'))).error().code() ==
        Errc::invalid_argument);
  CHECK_FALSE(render_header(layout, facts_of("\xff")));
}

TEST_CASE("layout: a patched header is the one that would be rendered", "[unit][format]") {
  const auto layout = layout_of({tensor("t", DType::f64, {3})});
  auto header = render_header(layout, facts_of()).value();
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{9}, UINT64_MAX}) {
    patch_header(header, value, Step{value / 2});
    auto facts = facts_of();
    facts.timeline = value;
    facts.step = Step{value / 2};
    CHECK(header == render_header(layout, facts).value());
  }
}

TEST_CASE("layout: the header says where pieces lie, to us and to torch", "[unit][format]") {
  auto box = tensor("box", DType::f32, {2, 3});
  box.piece = Piece{{8, 6}, {4, 3}, {}, {}, 1};
  auto turned = tensor("turned", DType::f32, {5, 7, 2});
  turned.piece = Piece{{4, 5, 9}, {2, 0, 1}, {}, {1, 2, 0}, 0};
  auto range = tensor("range", DType::f32, {10});
  range.piece = Piece{{8, 6}, {}, 33, {}, 0};
  const auto metadata_of = [&](std::vector<TensorSpec> tensors) {
    nlohmann::json found;
    for (const auto& [key, value] : image_of(layout_of(std::move(tensors)), facts_of()).metadata)
      found[key] = value;
    return found;
  };
  const auto whole = tensor("whole", DType::f32, {2});
  CHECK_FALSE(metadata_of({whole}).contains("DCP_SHARDING_INFO"));
  CHECK_FALSE(metadata_of({whole}).contains("libckpt.pieces"));
  const auto metadata = metadata_of({box, turned, range, whole});
  CHECK(metadata["DCP_VERSION"] == "1.0");
  const auto offsets = nlohmann::json::parse(metadata["DCP_SHARDING_INFO"].get<std::string>());
  CHECK(offsets == nlohmann::json::parse(R"({"box":{"saved_offsets":[4,3]},
      "turned":{"saved_offsets":[0,1,2]},"range":{"saved_offsets":[33]},
      "whole":{"saved_offsets":[0]}})"));
  const auto pieces = nlohmann::json::parse(metadata["libckpt.pieces"].get<std::string>());
  CHECK(pieces == nlohmann::json::parse(R"({"box":{"global_shape":[8,6],"offset":[4,3],"copy":1},
      "turned":{"global_shape":[4,5,9],"offset":[2,0,1],"order":[1,2,0],"copy":0},
      "range":{"global_shape":[8,6],"flat_begin":33,"copy":0}})"));
}

TEST_CASE("layout: the header's size does not depend on rank, job or step", "[unit][format]") {
  const auto first = layout_of({tensor("t", DType::f64, {3})}, 0, 0);
  const auto other = layout_of({tensor("t", DType::f64, {3})}, 0, UINT32_MAX);
  CHECK(first.members[0].header_bytes == other.members[0].header_bytes);
  CHECK(fingerprint(first) == fingerprint(other));
  CHECK(other.members[0].file_name == "rank-4294967295.safetensors");
}

TEST_CASE("layout: an impossible tensor is refused with its name", "[unit][format]") {
  const auto plain = [](std::string name) { return tensor(std::move(name), DType::u8, {1}); };
  CHECK(code_of({plain("")}) == Errc::invalid_argument);
  CHECK(code_of({plain("__metadata__")}) == Errc::invalid_argument);
  CHECK(code_of({plain("\xff")}) == Errc::invalid_argument);
  CHECK(code_of({plain(std::string(4097, 'x'))}) == Errc::invalid_argument);
  CHECK(code_of({plain(std::string(4096, 'x'))}) == Errc{});
  CHECK(code_of({plain("a"), plain("a")}) == Errc::invalid_argument);
  CHECK(code_of({plain("a"), tensor("a", DType::u8, {1}, "a")}) == Errc::invalid_argument);
  CHECK(code_of({tensor("a", DType::u8, {-1})}) == Errc::invalid_argument);
  CHECK(code_of({tensor("a", DType::u8, {INT64_MAX, 3})}) == Errc::invalid_argument);
  CHECK(code_of({tensor("a", DType::f64, {INT64_MAX})}) == Errc::invalid_argument);
  CHECK(code_of({tensor("a", DType::u8, std::vector<std::int64_t>(33, 1))}) ==
        Errc::invalid_argument);
  CHECK(code_of({plain("a"), tensor("b", DType::u8, {1}, "c")}) == Errc::invalid_argument);
  CHECK(code_of({plain("a"), tensor("b", DType::i8, {1}, "a")}) == Errc::invalid_argument);
  CHECK(code_of({plain("a"), tensor("b", DType::u8, {1}, "a"), tensor("c", DType::u8, {1}, "b")}) ==
        Errc::invalid_argument);
  const std::vector<TensorSpec> huge(3, tensor("a", DType::u8, {std::int64_t{1} << 59}));
  auto named = huge;
  named[1].name = "b";
  named[2].name = "c";
  CHECK(code_of(named) == Errc::invalid_argument);
  const auto error = make_layout(std::vector{plain("w"), plain("w")}, 0, 0).error();
  CHECK(error.text() == "tensor \"w\": this name was added twice");
}

TEST_CASE("layout: the tensors in an extent are named and counted", "[unit][format]") {
  const auto layout = layout_of(
      {tensor("a", DType::f32, {2}), tensor("b", DType::f32, {2}), tensor("c", DType::f32, {2})});
  const auto from_first = [&](std::uint64_t bytes) {
    return tensors_in(layout, {layout.tensors[0].extent.offset, bytes});
  };
  CHECK(from_first(0).empty());
  CHECK(from_first(8) == "tensor \"a\"");
  CHECK(from_first(9) == "tensor \"a\" and 1 other near it");
  CHECK(from_first(24) == "tensor \"a\" and 2 others near it");
}

TEST_CASE("layout: twenty thousand tensors", "[unit][format]") {
  std::vector<TensorSpec> tensors;
  for (int index = 0; index < 20'000; ++index)
    tensors.push_back(tensor("t" + std::to_string(index), DType::f32, {index % 5}));
  const auto layout = layout_of(tensors);
  CHECK(validate(layout));
  CHECK(image_of(layout, facts_of()).tensors.size() == tensors.size());
}

TEST_CASE("layout: names too long for a header are refused", "[unit][format]") {
  std::vector<TensorSpec> tensors;
  for (int index = 0; index < 25'000; ++index)
    tensors.push_back(tensor(std::string(4000, 'x') + std::to_string(index), DType::u8, {}));
  CHECK(code_of(tensors) == Errc::exhausted);
}

TEST_CASE("layout: equal models have equal fingerprints, others do not", "[unit][format]") {
  const auto base = layout_of({tensor("a", DType::f32, {2, 3})}, 100);
  auto newer = base;
  newer.version = 9;
  CHECK(fingerprint(base) == fingerprint(newer));
  CHECK(fingerprint(base) != fingerprint(layout_of({tensor("b", DType::f32, {2, 3})}, 100)));
  CHECK(fingerprint(base) != fingerprint(layout_of({tensor("a", DType::i32, {2, 3})}, 100)));
  CHECK(fingerprint(base) != fingerprint(layout_of({tensor("a", DType::f32, {3, 2})}, 100)));
  CHECK(fingerprint(base) != fingerprint(layout_of({tensor("a", DType::f32, {2, 3})}, 101)));
}

TEST_CASE("layout: file names of other forms are not ours", "[unit][format]") {
  CHECK(is_member_name("rank-00003.safetensors"));
  CHECK(is_member_name("rank-00003.blobs", 3));
  CHECK(is_member_name("rank-4294967295.blobs"));
  CHECK_FALSE(is_member_name("rank-00003.blobs", 4));
  for (const auto* name :
       {"", "rank-", "rank-00003", "rank-3.blobs", "rank-000003.blobs", "rank-4294967296.blobs",
        "rank-00003.", "rank-00003.part", "rank-00003.Blobs", "rank-00003.a.b", "../00003.blobs",
        "rank-0000a.blobs", "/rank-00003.blobs", "rank-00003.blobs/",
        "rank-00003.aaaaaaaaaaaaaaaaa"}) {
    CAPTURE(name);
    CHECK_FALSE(is_member_name(name));
  }
}

TEST_CASE("layout: one that was read is checked in every part", "[unit][format]") {
  const auto good = layout_of({tensor("a", DType::u8, {4096}), tensor("b", DType::u8, {5}),
                               tensor("c", DType::u8, {5}, "b")},
                              100);
  REQUIRE(validate(good));
  const auto is_refused = [&](auto change) {
    auto layout = good;
    change(layout);
    const auto status = validate(layout);
    return !status && status.error().code() == Errc::corruption;
  };
  CHECK(is_refused([](Layout& l) { l.members.clear(); }));
  CHECK(is_refused([](Layout& l) { l.members[0].file_name = "../x"; }));
  CHECK(is_refused([](Layout& l) { l.members[1].file_name = l.members[0].file_name; }));
  CHECK(is_refused([](Layout& l) { l.members[0].header_bytes = 8; }));
  CHECK(is_refused([](Layout& l) { l.members[0].header_bytes = 0; }));
  CHECK(is_refused([](Layout& l) { l.members[1].header_bytes = 4096; }));
  CHECK(is_refused([](Layout& l) { l.members[0].extent.bytes += 1; }));
  CHECK(is_refused([](Layout& l) { l.members[0].extent.bytes = UINT64_MAX; }));
  CHECK(is_refused([](Layout& l) { l.members[1].extent.offset += 4096; }));
  CHECK(is_refused([](Layout& l) {  // Over the file before it.
    l.members[1].extent.offset -= 4096;
    l.slot_bytes -= 4096;
  }));
  CHECK(is_refused([](Layout& l) { l.members[1].kind = MemberKind::torch; }));
  CHECK(is_refused([](Layout& l) { l.slot_bytes += 4096; }));
  CHECK(is_refused([](Layout& l) { l.blob_capacity += 1; }));
  CHECK(is_refused([](Layout& l) { l.tensors[0].extent.offset += 1; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].extent.offset -= 1; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].extent.offset = UINT64_MAX; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].extent.bytes += 1; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].shape = {-5}; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].member = 1; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].member = 2; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].name = "a"; }));
  CHECK(is_refused([](Layout& l) { l.tensors[1].name = "__metadata__"; }));
  CHECK(is_refused([](Layout& l) { l.tensors[2].alias_of = "nothing"; }));
  CHECK(is_refused([](Layout& l) { l.tensors[2].alias_of = "a"; }));
  CHECK(is_refused([](Layout& l) { l.tensors[2].alias_of = "c"; }));
  CHECK(is_refused([](Layout& l) { l.tensors[2].dtype = DType::i8; }));
  CHECK(is_refused([](Layout& l) { std::swap(l.tensors[0], l.tensors[1]); }));
  CHECK(is_refused([](Layout& l) { l.tensors.erase(l.tensors.begin() + 1, l.tensors.end()); }));
}

TEST_CASE("layout: an archive that was read is checked in every part", "[unit][format]") {
  auto first = tensor("archive//one", DType::u8, {100});
  auto second = tensor("archive//two", DType::u8, {100});
  first.archive = second.archive = "archive";
  const auto good = layout_of({tensor("a", DType::u8, {5}), first, second});
  REQUIRE(validate(good));
  REQUIRE(good.members.size() == 2);
  const Extent file = good.members[1].extent;
  const auto is_refused = [&](std::size_t index, Extent extent) {
    auto layout = good;
    layout.tensors[index].extent = extent;
    const auto status = validate(layout);
    return !status && status.error().code() == Errc::corruption;
  };
  REQUIRE(good.tensors[2].name == "archive//two");
  CHECK_FALSE(is_refused(2, {file.end() - 100, 100}));
  CHECK(is_refused(2, {file.end() - 99, 100}));
  CHECK(is_refused(2, {file.end() + 4096, 100}));
  CHECK(is_refused(2, {good.tensors[1].extent.end() - 1, 100}));
  CHECK(is_refused(1, {file.offset - 1, 100}));
}

}  // namespace ckpt::format
