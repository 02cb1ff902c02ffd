// Goal:   only tensors that can be copied and brought back bit for bit are taken, and every refusal
//         names the tensor and says what to do.
// Method: one tensor of each kind that is refused; then layouts made from what was taken.
#include "client/tensor_registry.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "format/piece.hpp"

namespace ckpt::client {

namespace {

using Catch::Contains;

TensorRef floats(void* data, std::vector<std::int64_t> shape) {
  TensorRef tensor;
  tensor.data = data;
  tensor.dtype = DType::f32;
  tensor.shape = std::move(shape);
  return tensor;
}

}  // namespace

TEST_CASE("tensor registry: a tensor that cannot be saved is refused by name", "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  REQUIRE(registry.add("first", floats(data.data(), {8})));
  TensorRef tensor = floats(data.data(), {8, 8});
  std::string name = "model.weight";
  Errc code = Errc::invalid_argument;
  std::string text;
  SECTION("a duplicate") {
    name = "first", text = "added before";
  }
  SECTION("an empty name") {
    name = "", text = "empty";
  }
  SECTION("a reserved name") {
    name = "__metadata__", text = "reserved";
  }
  SECTION("not UTF-8") {
    name = "\xff\xfe", text = "UTF-8";
  }
  SECTION("null data") {
    tensor.data = nullptr, text = "null";
  }
  SECTION("a transposed view") {
    tensor.strides = {1, 8}, text = "strided view";
  }
  SECTION("every second row") {
    tensor.strides = {16, 1}, text = "strided view";
  }
  SECTION("a broadcast view") {
    tensor.strides = {0, 1}, text = "strided view";
  }
  SECTION("too few strides") {
    tensor.strides = {1}, text = "1 strides for 2 dimensions";
  }
  SECTION("a negative dimension") {
    tensor.shape = {8, -1}, text = "shape";
  }
  SECTION("an overflowing shape") {
    tensor.shape = {INT64_MAX, INT64_MAX}, text = "shape";
  }
  SECTION("on a GPU") {
    tensor.location = Location::cuda, tensor.device_index = 3;
    code = Errc::unsupported, text = "GPU 3";
  }
  SECTION("nowhere") {
    tensor.location = static_cast<Location>(9), text = "location";
  }
  const Status added = registry.add(name, tensor);
  REQUIRE_FALSE(added);
  REQUIRE(added.error().code() == code);
  REQUIRE_THAT(added.error().text(), Contains(text));
  REQUIRE(registry.count() == 1);
}

TEST_CASE("tensor registry: contiguous tensors are taken, whatever their strides say",
          "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  TensorRef tensor = floats(data.data(), {8, 1, 8});
  tensor.strides = {8, 777, 1};
  REQUIRE(registry.add("ones are not strided over", tensor));
  tensor = floats(nullptr, {0, 5});
  tensor.strides = {1, 1};
  REQUIRE(registry.add("empty", tensor));
  REQUIRE(registry.add("scalar", floats(data.data(), {})));
  REQUIRE(registry.count() == 3);
}

TEST_CASE("tensor registry: the same bytes under two names are tied", "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  REQUIRE(registry.add("embed", floats(data.data(), {8, 8})));
  REQUIRE(registry.add("head", floats(data.data(), {8, 8})));
  REQUIRE(registry.add("flat", floats(data.data(), {64})));
  TensorRef as_bits = floats(data.data(), {8, 8});
  as_bits.dtype = DType::i32;
  REQUIRE(registry.add("bits", as_bits));
  REQUIRE(registry.add("empty1", floats(nullptr, {0})));
  REQUIRE(registry.add("empty2", floats(nullptr, {0})));
  for (const auto& spec : registry.specs()) {
    INFO(spec.name);
    REQUIRE(spec.alias_of == (spec.name == "head" ? "embed" : ""));
  }
}

TEST_CASE("tensor registry: a piece goes into the layout, and other parts are not tied",
          "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  TensorRef part = floats(data.data(), {8, 8});
  part.piece = Piece{{16, 8}, {8, 0}, {}, {0, 1}, 0};
  REQUIRE(registry.add("part", part));
  REQUIRE(registry.add("same part", part));
  REQUIRE(registry.add("whole", floats(data.data(), {8, 8})));
  part.piece->offset = {0, 0};
  REQUIRE(registry.add("other part", part));
  part.piece->offset = {9, 0};
  const Status outside = registry.add("outside", part);
  REQUIRE_FALSE(outside);
  REQUIRE(outside.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(outside.error().text(), Contains("\"outside\"") && Contains("from 9 of length 8"));
  for (const auto& spec : registry.specs()) {
    INFO(spec.name);
    REQUIRE(spec.alias_of == (spec.name == "same part" ? "part" : ""));
  }
  const auto layout = format::make_layout(registry.specs(), 0, 0).value();
  REQUIRE(layout.tensors[0].piece == Piece{{16, 8}, {8, 0}, {}, {}, 0});
  const auto targets = registry.targets();
  REQUIRE(*targets[0].piece == *layout.tensors[0].piece);
  REQUIRE(targets[2].piece == nullptr);
}

// Else nobody would find it as a part of "w".
TEST_CASE(
    "tensor registry: a part that is named after its place stays one, where it is all there is",
    "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  TensorRef all = floats(data.data(), {8, 8});
  all.piece = Piece{{8, 8}, {0, 0}, {}, {}, 0};
  REQUIRE(registry.add("w[0:8]", all));
  REQUIRE(registry.add("w[4:8]", all));  // Which is not its place.
  const auto layout = format::make_layout(registry.specs(), 0, 0).value();
  REQUIRE(layout.tensors[0].piece.has_value());
  CHECK(format::tensor_name_of("w[0:8]", layout.tensors[0].piece, layout.tensors[0].shape) == "w");
  CHECK_FALSE(layout.tensors[1].piece.has_value());
}

TEST_CASE("tensor registry: tied to an unguarded name, bytes are copied at the call",
          "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  TensorRef guarded = floats(data.data(), {8, 8});
  guarded.guarded = true;
  REQUIRE(registry.add("embed", guarded));
  REQUIRE(registry.add("head", floats(data.data(), {8, 8})));
  const auto layout = format::make_layout(registry.specs(), 0, 0).value();
  const auto sources = registry.sources(layout);
  REQUIRE(layout.tensors[0].name == "embed");
  REQUIRE_FALSE(sources[0].is_guarded);
}

TEST_CASE("tensor registry: when the holder of the bytes goes, its alias takes over",
          "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(64);
  REQUIRE(registry.add("embed", floats(data.data(), {8, 8})));
  REQUIRE(registry.add("head", floats(data.data(), {8, 8})));
  const auto version = registry.version();
  REQUIRE(registry.remove("embed"));
  REQUIRE(registry.version() > version);
  REQUIRE(registry.specs().size() == 1);
  REQUIRE(registry.specs()[0].alias_of.empty());
  const Status again = registry.remove("embed");
  REQUIRE_FALSE(again);
  REQUIRE(again.error().code() == Errc::not_found);
  REQUIRE(registry.add("embed", floats(data.data(), {8, 8})));
}

TEST_CASE("tensor registry: what changes is the optimizer's, and what is frozen does not",
          "[unit][client]") {
  std::vector<float> data(64);
  const auto changing = [&](bool owns_lora, bool owns_frozen, bool knows_frozen) {
    TensorRegistry registry;
    if (knows_frozen) registry.set_frozen({"frozen", "another"});
    for (const char* name : {"frozen", "lora", "bias"}) {
      TensorRef tensor = floats(data.data() + registry.count() * 8, {8});
      tensor.guarded = (std::string_view(name) == "lora" && owns_lora) ||
                       (std::string_view(name) == "frozen" && owns_frozen);
      REQUIRE(registry.add(name, tensor));
    }
    std::vector<std::string> names;
    const auto specs = registry.specs();
    const auto changes = registry.changes(specs);
    REQUIRE(changes.size() == specs.size());
    for (std::size_t index = 0; index < specs.size(); ++index)
      if (changes[index]) names.push_back(specs[index].name);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(changing(true, false, false) == Names{"lora"});
  CHECK(changing(true, true, false) == Names{"frozen", "lora"});
  CHECK(changing(true, true, true) == Names{"lora"});
  CHECK(changing(false, false, true) == Names{"lora", "bias"});
  CHECK(changing(false, false, false) == Names{"frozen", "lora", "bias"});
}

TEST_CASE("tensor registry: names that freeze or thaw make another layout", "[unit][client]") {
  TensorRegistry registry;
  std::vector<float> data(8);
  REQUIRE(registry.add("a", floats(data.data(), {8})));
  std::uint64_t version = registry.version();
  registry.set_frozen({});
  CHECK(registry.version() == version);
  registry.set_frozen({"a"});
  CHECK(registry.version() > version);
  version = registry.version();
  registry.set_frozen({"a"});
  CHECK(registry.version() == version);
  registry.set_frozen({"b"});
  CHECK(registry.version() > version);
  CHECK(registry.changes(registry.specs()) == Changes{true});
}

}  // namespace ckpt::client
