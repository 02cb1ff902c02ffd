// Goal:   the header of an exported file is one that readers of safetensors accept, and says what
//         was asked for.
// Method: headers are read by our own strict reader; tests/python reads them with the reference.
#include "format/safetensors_plain.hpp"

#include <catch2/catch.hpp>

#include "format/safetensors_image.hpp"

namespace ckpt::format {

using Metadata = std::vector<std::pair<std::string, std::string>>;

TEST_CASE("plain header: a reader finds each tensor where its bytes will lie", "[unit][format]") {
  const std::vector<PlainTensor> tensors = {{"a", DType::f64, {2, 3}, 48},
                                            {"a.\"b\"", DType::bf16, {}, 2},
                                            {"none", DType::f32, {0, 4}, 0},
                                            {"last", DType::u8, {5}, 5}};
  const Metadata metadata = {{"format", "pt"}, {"tied", "a"}};
  const auto header = plain_header(tensors, metadata);
  REQUIRE(header);
  CHECK(header->size() % 8 == 0);
  const auto image = parse_safetensors(*header, header->size() + 55);
  REQUIRE((image ? "" : image.error().message()) == "");
  CHECK(image->header_bytes == header->size());
  CHECK(image->metadata == metadata);
  REQUIRE(image->tensors.size() == 4);
  std::uint64_t at = header->size();
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    CHECK(image->tensors[index].name == tensors[index].name);
    CHECK(image->tensors[index].dtype == tensors[index].dtype);
    CHECK(image->tensors[index].extent == Extent{at, tensors[index].bytes});
    at += tensors[index].bytes;
  }
}

TEST_CASE("plain header: no tensors are a file as well", "[unit][format]") {
  const auto header = plain_header({}, Metadata());
  REQUIRE(header);
  const auto image = parse_safetensors(*header, header->size());
  REQUIRE(image);
  CHECK(image->tensors.empty());
}

TEST_CASE("plain header: names that no file can have are refused", "[unit][format]") {
  for (const char* name : {"", "__metadata__", "\xff"}) {
    const std::vector<PlainTensor> tensors = {{name, DType::u8, {1}, 1}};
    const auto header = plain_header(tensors, Metadata());
    REQUIRE_FALSE(header);
    CHECK(header.error().code() == Errc::invalid_argument);
  }
  const std::vector<PlainTensor> twice = {{"a", DType::u8, {1}, 1}, {"a", DType::u8, {1}, 1}};
  CHECK_FALSE(plain_header(twice, Metadata()));
}

}  // namespace ckpt::format
