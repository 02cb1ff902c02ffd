// Goal:   the tensors of a torch archive are found, and nothing that its pickle says is run.
// Method: pickles put together by hand, of every form that torch.save writes; then what it never
//         writes, bombs, and random damage.
#include "format/torch_pickle.hpp"

#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "format/pickle_machine.hpp"
#include "unit/format/torch_pickle.hpp"

namespace ckpt::format {

namespace {

using Catch::Contains;
using test::bytes_in;
using test::dict;
using test::integer;
using test::little;
using test::name;
using test::pickle;
using test::PickleTensor;
using test::tensor;
using test::text;
using test::tuple;

PickledTensors read_pickle(const std::string& value) {
  const std::string text = pickle(value);
  auto found = read_torch_pickle(bytes_in(text));
  REQUIRE((found ? "" : found.error().message()) == "");
  return *found;
}
std::string refusal(const std::string& value) {
  const std::string text = pickle(value);
  const auto found = read_torch_pickle(bytes_in(text));
  REQUIRE_FALSE(found);
  return found.error().message();
}

}  // namespace

TEST_CASE("torch pickle: tensors have the keys on the way to them", "[unit][format]") {
  const auto found = read_pickle(
      dict({{"model",
             dict({{"w", tensor({})}, {"b", tensor({.offset = 3, .shape = {3}, .strides = {1}})}})},
            {"step", integer(7)},
            {"list", "](" + tensor({.key = "1"}) + "Ne"},
            {"loss", "G01234567"},
            {"name", text("gpt")}}));
  REQUIRE(found.tensors.size() == 3);
  CHECK(found.tensors[0].name == "model.w");
  CHECK(found.tensors[0].dtype == DType::f32);
  CHECK(found.tensors[0].shape == std::vector<std::int64_t>{2, 3});
  CHECK(found.tensors[0].storage == "0");
  CHECK(found.tensors[0].storage_bytes == 24);
  CHECK(found.tensors[1].name == "model.b");
  CHECK(found.tensors[1].offset == 12);
  CHECK(found.tensors[2].name == "list.0");
  CHECK(found.left_out == 4);
  CHECK(read_pickle(tensor({})).tensors.at(0).name == "tensor");
  CHECK(read_pickle("}").tensors.empty());
}

TEST_CASE("torch pickle: the forms that torch uses", "[unit][format]") {
  SECTION("an OrderedDict with its metadata, and a memo") {
    const std::string ordered = name("collections", "OrderedDict") + ")Rq\x01" + text("w") +
                                tensor({}) + "s" + "}" + text("_metadata") + "h\x01s" + "b";
    CHECK(read_pickle(ordered).tensors.at(0).name == "w");
  }
  SECTION("a parameter") {
    const std::string parameter =
        name("torch._utils", "_rebuild_parameter") +
        tuple({tensor({}), "\x88", name("collections", "OrderedDict") + ")R"}) + "R";
    CHECK(read_pickle(dict({{"p", parameter}})).tensors.at(0).name == "p");
  }
  SECTION("a type of its own, of protocol 4") {
    const std::string storage =
        tuple({text("storage"), text("torch.storage") + text("UntypedStorage") + "\x93", text("9"),
               text("cpu"), integer(4)}) +
        "Q";
    const std::string typed =
        name("torch._utils", "_rebuild_tensor_v3") +
        tuple({storage, integer(1), "K\x03\x85", "K\x01\x85", "\x89",
               name("collections", "OrderedDict") + ")R", name("torch", "float8_e4m3fn")}) +
        "R";
    const auto found = read_pickle(dict({{"f8", typed}}));
    CHECK(found.tensors.at(0).dtype == DType::f8_e4m3);
    CHECK(found.tensors.at(0).offset == 1);
    CHECK(found.tensors.at(0).storage_bytes == 4);
  }
  SECTION("dimensions of one element, and tensors without any") {
    CHECK(read_pickle(dict({{"a", tensor({.shape = {1, 6, 1}, .strides = {77, 1, 3}})},
                            {"b", tensor({.offset = 6, .shape = {0, 3}, .strides = {3, 1}})},
                            {"c", tensor({.offset = 5, .shape = {}, .strides = {}})}}))
              .tensors.size() == 3);
  }
}

TEST_CASE("torch pickle: code is named and never run", "[unit][format]") {
  CHECK_THAT(refusal(name("os", "system") + tuple({text("true")}) + "R"),
             Contains("it needs os.system, and code is never run"));
  CHECK_THAT(refusal(text("os") + text("system") + "\x93"), Contains("os.system"));
  CHECK_THAT(refusal(name("torch.storage", "_load_from_bytes")), Contains("_load_from_bytes"));
  CHECK_THAT(refusal(name("collections", "OrderedDict") + tuple({text("a")}) + "R"),
             Contains("in a way that is not known"));
  CHECK_THAT(refusal(name("torch", "FloatStorage") + ")R"), Contains("in a way"));
  CHECK_THAT(refusal(text("a") + "}b"), Contains("sets the state"));
  // INST, OBJ, NEWOBJ, REDUCE over a text, extensions, persistent ids as text.
  for (const std::string code : {"i", "o", "\x81", "\x92", "\x82", "P", "S'a'\n", "I1\n"})
    CHECK_THAT(refusal("(" + code), Contains("is not on the list"));
  CHECK_THAT(refusal(text("a") + ")R"), Contains("what is no name"));
}

TEST_CASE("torch pickle: tensors outside of their storage are refused", "[unit][format]") {
  const auto problem = [](const PickleTensor& given) {
    return refusal(dict({{"w", tensor(given)}}));
  };
  CHECK_THAT(problem({.elements = 5}), Contains("outside of its storage"));
  CHECK_THAT(problem({.offset = 1}), Contains("outside of its storage"));
  CHECK_THAT(problem({.shape = {65535, 65535, 65535, 65535, 65535}, .strides = {1, 1, 1, 1, 1}}),
             Contains("cannot be counted"));
  CHECK_THAT(problem({.strides = {1, 2}}), Contains("tensor \"w\"") && Contains("row-major"));
  CHECK_THAT(problem({.strides = {0, 1}}), Contains("row-major"));
  CHECK_THAT(problem({.strides = {1}}), Contains("a stride for each dimension"));
  CHECK_THAT(problem({.type = "QInt8Storage"}), Contains("torch.QInt8Storage"));
}

TEST_CASE("torch pickle: bombs end early", "[unit][format]") {
  // A list of two references to the list before, and so on: two to the power of sixty values.
  std::string bomb = "]q" + little(0, 1);
  for (std::uint64_t level = 1; level <= 60; ++level)
    bomb += "](h" + little(level - 1, 1) + "h" + little(level - 1, 1) + "eq" + little(level, 1);
  CHECK_THAT(refusal(bomb), Contains("too many values"));
  CHECK_THAT(refusal("]q" + little(0, 1) + "h" + little(0, 1) + "a"), Contains("too many others"));
  std::string deep;
  for (int level = 0; level < 1000; ++level) deep += "](";
  for (int level = 0; level < 1000; ++level) deep += "e";
  CHECK_FALSE(read_torch_pickle(bytes_in(pickle(deep))));
  CHECK_THAT(refusal(std::string(pickle_values_max + 10, 'N')), Contains("too many values"));
  CHECK_THAT(refusal("X" + little(UINT32_MAX, 4)), Contains("too long"));
  CHECK_THAT(refusal(dict({{std::string(5000, 'a'), tensor({})}})), Contains("too long"));
}

TEST_CASE("torch pickle: damage is an error or another pickle, never worse", "[unit][format]") {
  const std::string good = pickle(dict(
      {{"model", dict({{"w", tensor({})}, {"b", tensor({.key = "1"})}})}, {"step", integer(7)}}));
  REQUIRE(read_torch_pickle(bytes_in(good)));
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_FALSE(read_torch_pickle(bytes_in(good.substr(0, cut))));
  Random random(11);
  for (int round = 0; round < 50'000; ++round) {
    std::string bad = good;
    for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes)
      bad[random.below(bad.size())] = static_cast<char>(random.next());
    const auto found = read_torch_pickle(bytes_in(bad));
    if (!found) continue;
    for (const PickledTensor& each : found->tensors) {
      const auto bytes = tensor_bytes(each.dtype, each.shape);
      REQUIRE(bytes);
      REQUIRE((*bytes == 0 || each.offset + *bytes <= each.storage_bytes));
    }
  }
}

}  // namespace ckpt::format
