// Goal:   a hostile safetensors header is refused quickly, a valid one is read right.
// Method: one valid file by hand; each rule of the format broken once; bombs of size and depth.
#include "format/safetensors_image.hpp"
#include "format/safetensors_header.hpp"

#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "format/codec.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

// A file's front with this JSON text, and the size of the file that has `data_bytes` behind it.
Result<SafetensorsImage> parse_image(std::string_view json, std::uint64_t data_bytes) {
  Writer writer;
  writer.u64(json.size());
  writer.raw(test::bytes_of(json));
  const auto front = writer.take();
  return parse_safetensors(front, front.size() + data_bytes);
}

std::string header_entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  std::string text = "\"";
  text.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":");
  text.append(shape).append(",\"data_offsets\":").append(offsets).append("}");
  return text;
}

Errc image_code_of(std::string_view json, std::uint64_t data_bytes) {
  const auto image = parse_image(json, data_bytes);
  return image ? Errc{} : image.error().code();
}

}  // namespace

TEST_CASE("safetensors: a file made elsewhere is read", "[unit][format]") {
  const auto image = parse_image(
      "{\"b\":{\"data_offsets\":[4,12],\"shape\":[2,2],\"dtype\":\"BF16\"},"
      "\"__metadata__\":{\"format\":\"pt\"},"
      "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
      "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[4,4]}}   ",
      12);
  if (!image) FAIL(image.error().message());
  const std::uint64_t data = image->header_bytes;
  REQUIRE(image->tensors.size() == 3);
  CHECK(image->tensors[0] == ImageTensor{"scalar", DType::f32, {}, {data, 4}});
  CHECK(image->tensors[1] == ImageTensor{"none", DType::i64, {0, 7}, {data + 4, 0}});
  CHECK(image->tensors[2] == ImageTensor{"b", DType::bf16, {2, 2}, {data + 4, 8}});
  CHECK(image->metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
  CHECK(parse_image("{}", 0));
}

TEST_CASE("safetensors: each rule, broken once", "[unit][format]") {
  const auto one = [](std::string_view shape, std::string_view offsets) {
    return "{" + header_entry("a", "F32", shape, offsets) + "}";
  };
  REQUIRE(image_code_of(one("[2]", "[0,8]"), 8) == Errc{});
  const std::pair<std::string, std::uint64_t> cases[] = {
      {one("[2]", "[0,8]"), 7},                      // Ends behind the file.
      {one("[2]", "[0,8]"), 9},                      // A byte behind the last tensor.
      {one("[2]", "[1,9]"), 9},                      // A hole in front.
      {one("[2]", "[0,4]"), 4},                      // Not the size of the shape.
      {one("[2]", "[8,0]"), 8},                      // Backwards.
      {one("[2]", "[0,8,8]"), 8},                    // Three numbers.
      {one("[2]", "[0]"), 8},                        // One number.
      {one("[2.0]", "[0,8]"), 8},                    // A fraction.
      {one("[-2]", "[0,8]"), 8},                     // Negative.
      {one("[9223372036854775808,0]", "[0,0]"), 0},  // Above 63 bits.
      {one("[4611686018427387904,4]", "[0,0]"), 0},  // The product wraps to zero.
      {one("[4611686018427387904,4,0]", "[0,0]"), 0},
      {one("[4611686018427387904]", "[0,0]"), 0},  // The product with the type's size wraps.
      {one("[2]", "[0,18446744073709551615]"), 8},
      {one("[2]", "[18446744073709551608,18446744073709551615]"), 8},
      {"{" + header_entry("a", "F32", "[1]", "[0,4]") + "," +
           header_entry("b", "F32", "[1]", "[0,4]") + "}",
       4},
      {"{" + header_entry("a", "F32", "[1]", "[0,4]") + "," +
           header_entry("b", "F32", "[1]", "[5,9]") + "}",
       9},
      {"{" + header_entry("a", "F32", "[1]", "[0,4]") + "," +
           header_entry("a", "F32", "[1]", "[4,8]") + "}",
       8},
      {"{" + header_entry("a", "F32", "[1]", "[0,4]") + "," +
           header_entry("\\u0061", "F32", "[1]", "[4,8]") + "}",
       8},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":\"x\"}}", 4},
      {"{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
      {"{\"__metadata__\":{\"a\":1}}", 0},
      {"{\"__metadata__\":null}", 0},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0},
      {"{\"__metadata__\":{},\"\\u005f_metadata__\":{}}", 0},
      {" {}", 0},
      {"\xef\xbb\xbf{}", 0},
      {std::string("{}\0", 3), 0},
      {"{}x", 0},
      {"{}{}", 0},
      {"[]", 0},
      {"", 0}};
  for (const auto& [json, data_bytes] : cases) {
    CAPTURE(json, data_bytes);
    CHECK(image_code_of(json, data_bytes) == Errc::corruption);
  }
}

TEST_CASE("safetensors: a type that we do not know is named", "[unit][format]") {
  const auto image = parse_image("{" + header_entry("w.q", "F4", "[2]", "[0,1]") + "}", 1);
  REQUIRE_FALSE(image);
  CHECK(image.error().code() == Errc::unsupported);
  CHECK(image.error().text() == "safetensors header: tensor \"w.q\" has the type \"F4\"");
}

TEST_CASE("safetensors: the header's length is checked before anything is read", "[unit][format]") {
  const auto claim = [](std::uint64_t json_bytes, std::uint64_t file_bytes) {
    Writer writer;
    writer.u64(json_bytes);
    const auto front = writer.take();
    return safetensors_header_bytes(front, file_bytes);
  };
  CHECK(claim(2, 10).value() == 10);
  CHECK(claim(100'000'000, 1ull << 40).value() == 100'000'008);
  CHECK_FALSE(claim(3, 10));
  CHECK_FALSE(claim(100'000'001, 1ull << 40));
  CHECK_FALSE(claim(UINT64_MAX, UINT64_MAX));
  CHECK_FALSE(claim(UINT64_MAX - 7, 8));
  CHECK_FALSE(claim(0, 7));
  CHECK_FALSE(safetensors_header_bytes(test::bytes_of("1234567"), 100));
  CHECK_FALSE(parse_safetensors(test::bytes_of("\x02\0\0\0\0\0\0"), 10));
}

TEST_CASE("safetensors: bombs are refused", "[unit][format]") {
  std::string deep = "{\"a\":";
  deep.append(1'000'000, '[');
  CHECK(image_code_of(deep, 0) == Errc::corruption);

  std::string overlapping = "{";
  for (int index = 0; index < 20'000; ++index)
    overlapping += header_entry("t" + std::to_string(index), "U8", "[100]", "[0,100]") + ",";
  overlapping.back() = '}';
  CHECK(image_code_of(overlapping, 100) == Errc::corruption);

  std::string shape = "[";
  for (int index = 0; index < 100'000; ++index) shape += "1,";
  shape.back() = ']';
  CHECK(image_code_of("{" + header_entry("a", "U8", shape, "[0,1]") + "}", 1) == Errc::corruption);
  CHECK(image_code_of("{" + header_entry(std::string(4097, 'x'), "U8", "[]", "[0,1]") + "}", 1) ==
        Errc::corruption);
}

TEST_CASE("safetensors: a damaged header is an error or a legal header", "[unit][format]") {
  const auto layout =
      test::layout_of({test::tensor("w", DType::f32, {2, 3}), test::tensor("b", DType::i64, {}),
                       test::tensor("tied", DType::f32, {2, 3}, "w")});
  const auto good = render_header(layout, {"gpt2", to_hex(Digest{}), 1, Step{2}, 0, 1}).value();
  const std::uint64_t file_bytes = layout.members[0].extent.bytes;
  REQUIRE(parse_safetensors(good, file_bytes));
  Random random(41);
  for (int round = 0; round < 10'000; ++round) {
    auto bad = good;
    const auto changes = 1 + random.below(3);
    for (std::uint64_t change = 0; change < changes; ++change)
      bad[random.below(400)] = static_cast<std::byte>(random.below(256));
    const auto image = parse_safetensors(bad, file_bytes);
    if (!image) continue;
    std::uint64_t end = image->header_bytes;
    for (const auto& tensor : image->tensors) {
      REQUIRE(tensor.extent.offset == end);
      REQUIRE(tensor_bytes(tensor.dtype, tensor.shape) == tensor.extent.bytes);
      end = tensor.extent.end();
    }
    REQUIRE(end == file_bytes);
  }
}

}  // namespace ckpt::format
