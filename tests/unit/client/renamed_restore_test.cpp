// Goal:   a restore finds what was saved under other names, and can leave what it does not want.
// Method: a rank with an embedded engine saves and publishes; then it registers other tensors under
//         other names, and restores from memory and from the path.
#include <catch2/catch.hpp>
#include <chrono>
#include <ckpt/checkpointer.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "client/saved_names.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt {

namespace {

using Catch::Contains;

constexpr std::size_t count = 5000;

TensorRef tensor_of(std::vector<float>& values) {
  TensorRef tensor;
  tensor.data = values.data();
  tensor.dtype = DType::f32;
  tensor.shape = {static_cast<std::int64_t>(values.size())};
  return tensor;
}

std::vector<float> numbers(float first) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

// One rank that has saved and published "encoder.w", "head.w" and a blob, and then removed the two
// tensors, so that it can register others.
struct Scene {
  Scene() {
    Log::set_level(LogLevel::error);
    Options options;
    options.job = "renamed";
    options.dir = directory.file("run");
    options.save_storage_interval = {1, {}};
    options.embedded = true;
    options.memory_budget = 64 << 20;
    auto opened = Checkpointer::open(options);
    REQUIRE((opened ? "" : opened.error().message()) == "");
    checkpointer.emplace(std::move(*opened));
    REQUIRE(checkpointer->add("encoder.w", tensor_of(encoder)));
    REQUIRE(checkpointer->add("head.w", tensor_of(head)));
    REQUIRE(checkpointer->add_blob("position", position));
    REQUIRE(checkpointer->restore().error().code() == Errc::not_found);
    REQUIRE(checkpointer->save(Step{1}, {}, patience).value() == SaveOutcome::started);
    REQUIRE(checkpointer->wait(Step{1}, Level::durable, patience));
    REQUIRE(checkpointer->remove("encoder.w"));
    REQUIRE(checkpointer->remove("head.w"));
    position.assign(position.size(), std::byte{0});
  }

  static constexpr std::chrono::seconds patience{60};
  test::TemporaryDirectory directory;
  std::vector<float> encoder = numbers(1), head = numbers(70'000);
  std::vector<std::byte> position = std::vector<std::byte>(8, std::byte{9});
  std::vector<float> backbone = std::vector<float>(count), classifier = std::vector<float>(count);
  std::optional<Checkpointer> checkpointer;
};

}  // namespace

TEST_CASE("renamed: tensors come back under the names that they have now", "[unit][client]") {
  Scene scene;
  REQUIRE(scene.checkpointer->add("backbone.w", tensor_of(scene.backbone)));
  REQUIRE(scene.checkpointer->add("classifier.w", tensor_of(scene.classifier)));
  RestoreRequest request;
  request.from = GENERATE(as<std::string>(), "", "path");
  if (!request.from.empty()) request.from = scene.directory.file("run");
  const auto refused = scene.checkpointer->restore(request);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  request.renamed = {{"encoder", "backbone"}, {"head", "classifier"}};
  const auto restored = scene.checkpointer->restore(request);
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(scene.backbone == scene.encoder);
  CHECK(scene.classifier == scene.head);
  CHECK(scene.position == std::vector<std::byte>(8, std::byte{9}));
}

TEST_CASE("renamed: other training takes the weights that it has, and nothing else",
          "[unit][client]") {
  Scene scene;
  REQUIRE(scene.checkpointer->add("backbone.w", tensor_of(scene.backbone)));
  RestoreRequest request;
  request.from = GENERATE(as<std::string>(), "", "path");
  if (!request.from.empty()) request.from = scene.directory.file("run");
  request.renamed = {{"encoder", "backbone"}};
  request.leaves_rest = true;
  const auto restored = scene.checkpointer->restore(request);
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(scene.backbone == scene.encoder);
  CHECK(scene.position == std::vector<std::byte>(8, std::byte{0}));
}

TEST_CASE("renamed: what is registered must be there, also where the rest is left",
          "[unit][client]") {
  Scene scene;
  REQUIRE(scene.checkpointer->add("other.w", tensor_of(scene.backbone)));
  RestoreRequest request;
  request.from = scene.directory.file("run");
  request.leaves_rest = true;
  const auto restored = scene.checkpointer->restore(request);
  REQUIRE_FALSE(restored);
  CHECK_THAT(restored.error().message(), Contains("other.w"));
}

TEST_CASE("saved names: the longest rule counts, and whole words only", "[unit][client]") {
  const auto names = client::SavedNames::from({{"a", "b"}, {"a.x", "c"}, {"b", "a"}});
  REQUIRE(names);
  CHECK(names->of(std::string_view("b.y")).value() == "a.y");
  CHECK(names->of(std::string_view("c.0")).value() == "a.x.0");
  CHECK(names->of(std::string_view("a/w")).value() == "b/w");
  CHECK(names->of(std::string_view("b[0:4]")).value() == "a[0:4]");
  CHECK(names->of(std::string_view("bc")).value() == "bc");
  const auto none = names->of(std::string_view("b.x"));
  REQUIRE_FALSE(none);
  CHECK_THAT(none.error().message(), Contains("\"a.x\" there is \"c\" here"));
  CHECK_FALSE(client::SavedNames::from({{"", "b"}}));
  CHECK_FALSE(client::SavedNames::from({{"a", "b"}, {"c", "b"}}));
  CHECK_FALSE(client::SavedNames::from({{"a", "b"}, {"a", "c"}}));
}

}  // namespace ckpt
