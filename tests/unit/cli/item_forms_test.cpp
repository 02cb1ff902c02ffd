// Goal:   what Python's items say about their tensors is understood, deflated or not, and nonsense
//         is an error.
// Method: structures as bindings/python/libckpt/core/_items.py and _structure.py write them.
#include "cli/item_forms.hpp"

#include <isa-l/igzip_lib.h>

#include <catch2/catch.hpp>
#include <memory>

namespace ckpt::cli {
namespace {

Result<ItemForms> parsed_forms(const std::string& text) {
  return parse_item_forms(std::as_bytes(std::span(text)));
}

std::string deflated(std::string text) {
  const auto stream = std::make_unique<isal_zstream>();
  isal_deflate_stateless_init(stream.get());
  std::string out(text.size() + 1000, '\0');
  stream->next_in = reinterpret_cast<std::uint8_t*>(text.data());
  stream->avail_in = static_cast<std::uint32_t>(text.size());
  stream->next_out = reinterpret_cast<std::uint8_t*>(out.data());
  stream->avail_out = static_cast<std::uint32_t>(out.size());
  stream->end_of_stream = 1;
  stream->gzip_flag = IGZIP_ZLIB;
  REQUIRE(isal_deflate_stateless(stream.get()) == COMP_OK);
  out.resize(stream->total_out);
  return out;
}

}  // namespace

TEST_CASE("item forms: tensors are found wherever they are, parts of larger ones are not",
          "[unit][cli]") {
  const std::string text =
      R"({"model":{"s":{"d":{"w":{"t":"model.w","torch":"float32","shape":[2,3]},)"
      R"("p":{"t":"model.p","torch":"float32","shape":[2,3],"part":true},)"
      R"("l":{"l":[{"v":1},{"n":{"t":"model.l.1","numpy":"float64","shape":[],"order":[]}}]}}}},)"
      R"("t":{"v":"t"},"libckpt.shares":{"model.w":0}})";
  for (const std::string& content : {text, deflated(text)}) {
    const auto forms = parsed_forms(content);
    REQUIRE((forms ? "" : forms.error().message()) == "");
    REQUIRE(forms->size() == 2);
    CHECK(forms->at("model.w").type == "float32");
    CHECK(forms->at("model.w").shape == std::vector<std::uint64_t>{2, 3});
    CHECK(forms->at("model.l.1").shape.empty());
  }
  CHECK(parsed_forms("")->empty());
}

TEST_CASE("item forms: a large structure is inflated in steps", "[unit][cli]") {
  std::string text = R"({"w":{"t":"w","torch":"float32","shape":[2]},"long":{"v":")";
  text += std::string(9'000'000, 'x') + "\"}}";
  const auto forms = parsed_forms(deflated(text));
  REQUIRE((forms ? "" : forms.error().message()) == "");
  CHECK(forms->size() == 1);
}

TEST_CASE("item forms: nonsense is an error", "[unit][cli]") {
  const std::string good = deflated(R"({"w":{"t":"w","torch":"float32","shape":[2]}})");
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("nonsense"), good.substr(0, 5),
        good.substr(0, good.size() - 6), deflated("[1]"), std::string(1, '\0')}) {
    const auto forms = parsed_forms(bad);
    REQUIRE_FALSE(forms);
    CHECK(forms.error().code() == Errc::corruption);
  }
}

TEST_CASE("item forms: a form of another tensor is refused", "[unit][cli]") {
  gather::TensorToRead stored;
  stored.name = "w";
  stored.dtype = DType::f32;
  stored.shape = {3, 2};
  ItemForm form;
  form.type = "float32";
  form.shape = {3, 2};
  REQUIRE(take_form(form, stored));
  CHECK(stored.order.empty());
  form.shape = {2, 3};
  CHECK_FALSE(take_form(form, stored));
  form.order = {1, 0};
  REQUIRE(take_form(form, stored));
  CHECK(stored.order == std::vector<std::uint8_t>{1, 0});
  for (const std::vector<std::uint8_t>& order :
       {std::vector<std::uint8_t>{1, 1}, {0, 2}, {0}, {1, 0, 2}}) {
    form.order = order;
    CHECK_FALSE(take_form(form, stored));
  }
}

TEST_CASE("item forms: three dimensions go back to where they were", "[unit][cli]") {
  gather::TensorToRead stored;
  stored.dtype = DType::u8;
  stored.shape = {5, 2, 3, 16};  // A type of 16 bytes, as its bytes.
  ItemForm form;
  form.shape = {2, 3, 5};
  form.order = {2, 0, 1};
  const auto shape = take_form(form, stored);
  REQUIRE(shape);
  CHECK(*shape == std::vector<std::uint64_t>{2, 3, 5, 16});
  CHECK(stored.order == std::vector<std::uint8_t>{1, 2, 0, 3});
}

}  // namespace ckpt::cli
