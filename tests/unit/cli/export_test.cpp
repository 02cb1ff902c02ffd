// Goal:   an export has the right bytes under the right names, or an error that says what to do; no
//         file under a final name is ever half-written.
// Method: small checkpoints on a disk in memory, exported through buffers of a few bytes. Files are
//         read by our strict reader of safetensors. Every operation of the disk fails once.
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/import_source.hpp"
#include "cli/workplace.hpp"
#include "support/temporary_directory.hpp"
#include "unit/cli/export_scene.hpp"

namespace ckpt::cli {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("export: the pieces of all ranks are one tensor, whichever ranks there were",
          "[unit][cli]") {
  ExportScene scene;
  const MadeTensor bias = floats("m.bias", {3}, 5);
  const MadeTensor small = made<std::uint8_t>("m.flags", DType::u8, {3}, 1);
  const MadeTensor count = made<std::int64_t>("m.count", DType::i64, {}, 77);
  const auto two = scene.publish(2, {{{rows("m.w", {5, 3}, 0, 2, 10), small, count}, {}},
                                     {{rows("m.w", {5, 3}, 2, 3, 10), bias}, {}}});
  const auto one = scene.publish(3, {{{floats("m.w", {5, 3}, 10), bias, small, count}, {}}});
  const Exported exported = scene.must_export(two);
  CHECK(exported.tensors.size() == 4);
  CHECK(exported.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  check_same(exported.tensors.at("m.w"), floats("m.w", {5, 3}, 10));
  check_same(exported.tensors.at("m.bias"), bias);
  check_same(exported.tensors.at("m.flags"), small);
  check_same(exported.tensors.at("m.count"), count);
  scene.disk.crash(test::Survival::nothing);
  CHECK(scene.names_in_out() == std::vector<std::string>{"model.safetensors"});
  const std::string before = scene.disk.content("/out/model.safetensors");
  scene.order.replaces = true;
  scene.must_export(one);
  CHECK(scene.disk.content("/out/model.safetensors") == before);
}

TEST_CASE("export: a torch file has every tensor where its pickle says, and no other bytes",
          "[unit][cli]") {
  ExportScene scene;
  scene.order.kind = ExportKind::torch;
  scene.wish.file_name = "model.pt";
  const MadeTensor bias = floats("m.bias", {3}, 5);
  const MadeTensor flags = made<std::uint8_t>("m.flags", DType::boolean, {3}, 0);
  const MadeTensor counts = made<std::uint16_t>("m.counts", DType::u16, {2, 2}, 70);
  const MadeTensor none = floats("m.none", {0, 4}, 0);
  const MadeTensor scalar = made<std::int64_t>("m.scalar", DType::i64, {}, 77);
  const auto path = scene.publish(
      2,
      {{{rows("m.w", {500, 30}, 0, 200, 10), flags, counts, none, bias, tied("m.tied", bias)}, {}},
       {{rows("m.w", {500, 30}, 200, 300, 10), scalar}, {}}});
  const auto paths = scene.try_export(path);
  REQUIRE((paths ? "" : paths.error().message()) == "");
  // Read as `ckpt import` reads files of others.
  const std::string file = scene.disk.content("/out/model.pt");
  const test::TemporaryDirectory directory;
  const std::string copy = directory.file("model.pt");
  std::ofstream(copy, std::ios::binary) << file;
  Workplace workplace;
  const auto source = workplace.run(open_import(workplace.files(), {copy}, ""));
  REQUIRE((source ? "" : source.error().message()) == "");
  const auto bytes = std::as_bytes(std::span(file));
  std::map<std::string, MadeTensor> found;
  std::string alias_of;
  for (const ImportTensor& each : (*source)->tensors) {
    MadeTensor& tensor = found[each.spec.name];
    tensor.dtype = each.spec.dtype;
    tensor.shape = each.spec.shape;
    const auto content = bytes.subspan(each.bytes.offset, each.bytes.bytes);
    tensor.bytes.assign(content.begin(), content.end());
    if (!each.spec.alias_of.empty()) alias_of = each.spec.name + " is " + each.spec.alias_of;
    CHECK(each.bytes.offset % 64 == 0);
  }
  CHECK(found.size() == 7);
  check_same(found.at("m.w"), floats("m.w", {500, 30}, 10));
  for (const MadeTensor& tensor : {bias, flags, counts, none, scalar})
    check_same(found.at(tensor.name), tensor);
  CHECK(alias_of == "m.tied is m.bias");
}

TEST_CASE("export: a compressed checkpoint gives the same bytes as a plain one", "[unit][cli]") {
  ExportScene scene;
  const std::vector<MadeRank> ranks = {{{rows("m.w", {6000, 3}, 0, 2500, 10)}, {}},
                                       {{rows("m.w", {6000, 3}, 2500, 3500, 10)}, {}}};
  scene.order.buffer_bytes = 5000;
  scene.must_export(scene.publish(2, ranks));
  const std::string plain = scene.disk.content("/out/model.safetensors");
  scene.compression = storage::Compression{};
  const std::string packed = scene.publish(3, ranks);
  REQUIRE(scene.disk.exists(packed + "/rank-00001.safetensors.ckz"));
  scene.order.replaces = true;
  scene.must_export(packed);
  CHECK(scene.disk.content("/out/model.safetensors") == plain);
}

TEST_CASE("export: only what is chosen comes, under its shorter name", "[unit][cli]") {
  ExportScene scene;
  const auto path =
      scene.publish(1, {{{floats("model.a", {2}, 1), floats("model.b", {2}, 2),
                          floats("model.", {2}, 3), floats("optimizer.model.a", {2}, 4)},
                         {}}});
  scene.wish.choice.strip = "model.";
  const Exported stripped = scene.must_export(path);
  CHECK(stripped.tensors.size() == 2);
  check_same(stripped.tensors.at("a"), floats("", {2}, 1));
  CHECK(scene.plan.left_out == 2);
  scene.wish.choice.globs = {"*.b"};
  scene.order.replaces = true;
  CHECK(scene.must_export(path).tensors.size() == 1);
  scene.wish.choice.globs = {"*.c", "x"};
  const auto none = scene.try_export(path);
  REQUIRE_FALSE(none);
  CHECK(none.error().code() == Errc::not_found);
  CHECK_THAT(none.error().message(), Contains("\"*.c\"") && Contains("\"model.a\""));
}

TEST_CASE("export: one name of tied tensors is written, and the other is printed", "[unit][cli]") {
  ExportScene scene;
  const MadeTensor embed = floats("m.embed", {4}, 1);
  const auto path = scene.publish(1, {{{embed, tied("m.head", embed), tied("m.last", embed)}, {}}});
  scene.wish.choice.strip = "m.";
  const Exported once = scene.must_export(path);
  CHECK(once.tensors.size() == 1);
  CHECK(once.metadata.at("head") == "embed");
  REQUIRE(scene.plan.tied.size() == 2);
  CHECK(scene.plan.tied[0].other == "head");
  CHECK(scene.plan.tied[0].kept == "embed");
  scene.order.replaces = true;
  SECTION("each name may have the bytes") {
    scene.wish.copies_tied = true;
    const Exported both = scene.must_export(path);
    CHECK(both.tensors.size() == 3);
    check_same(both.tensors.at("head"), embed);
    CHECK(both.metadata.size() == 1);
  }
  SECTION("the name that has the bytes may be left out") {
    scene.wish.choice.globs = {"m.head", "m.last"};
    const Exported other = scene.must_export(path);
    CHECK(other.tensors.size() == 1);
    check_same(other.tensors.at("head"), embed);
    CHECK(other.metadata.at("last") == "head");
  }
  SECTION("what only some ranks tie is two tensors") {
    const MadeTensor upper = rows("a", {4, 2}, 0, 2, 1);
    const auto apart =
        scene.publish(2, {{{upper, tied("b", upper)}, {}},
                          {{rows("a", {4, 2}, 2, 2, 1), rows("b", {4, 2}, 2, 2, 90)}, {}}});
    scene.wish.choice.strip = "";
    const Exported both = scene.must_export(apart);
    CHECK(both.tensors.size() == 2);
    CHECK(scene.plan.tied.empty());
    CHECK(both.tensors.at("a").bytes != both.tensors.at("b").bytes);
  }
}

TEST_CASE("export: whole tensors of several ranks are the same, or one rank's is asked for",
          "[unit][cli]") {
  ExportScene scene;
  std::vector<MadeRank> ranks(3);
  for (MadeRank& rank : ranks) rank.tensors = {floats("same", {9}, 4), floats("seed", {9}, 1)};
  ranks[2].tensors[1].bytes.back() ^= std::byte{1};
  const auto path = scene.publish(1, ranks);
  scene.wish.choice.globs = {"same"};
  check_same(scene.must_export(path).tensors.at("same"), floats("", {9}, 4));
  scene.wish.choice.globs.clear();
  scene.order.replaces = true;
  const std::string before = scene.disk.content("/out/model.safetensors");
  const auto refused = scene.try_export(path);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::unsupported);
  CHECK_THAT(refused.error().message(),
             Contains("\"seed\": ranks 0 and 2 have saved it whole") && Contains("--rank"));
  CHECK(scene.disk.content("/out/model.safetensors") == before);
  CHECK(scene.names_in_out() == std::vector<std::string>{"model.safetensors"});
  scene.wish.rank = 2;
  CHECK(scene.must_export(path).tensors.at("seed").bytes == ranks[2].tensors[1].bytes);
}

TEST_CASE("export: ranks may have tensors of one name and of different shapes", "[unit][cli]") {
  ExportScene scene;
  const auto path = scene.publish(
      1,
      {{{floats("own", {3}, 1)}, {}}, {{floats("own", {4}, 2)}, {}}, {{floats("w", {2}, 1)}, {}}});
  CHECK_THAT(scene.error_of(path), Contains("\"own\": ranks 0, 1") && Contains("--rank"));
  scene.wish.rank = 1;
  check_same(scene.must_export(path).tensors.at("own"), floats("", {4}, 2));
  scene.wish.rank = 2;
  CHECK_THAT(scene.error_of(path), Contains("rank 2 has not"));
}

TEST_CASE("export: a tensor that Python's items had in another order gets its own", "[unit][cli]") {
  ExportScene scene;
  // As channels_last has it: the dimensions are stored as they lie.
  const MadeTensor stored = floats("model.w", {2, 2, 3, 5}, 0);
  const std::string structure =
      R"({"model":{"s":{"d":{"w":{"t":"model.w","torch":"float32","shape":[2,5,2,3],)"
      R"("order":[0,2,3,1]},"square":{"t":"model.square","torch":"float32","shape":[2,2],)"
      R"("order":[1,0]}}}},"t":{"v":"no tensor"}})";
  const auto path =
      scene.publish(1, {{{stored, floats("model.square", {2, 2}, 0)}, {{items_blob, structure}}}});
  const Exported exported = scene.must_export(path);
  const MadeTensor& found = exported.tensors.at("model.w");
  CHECK(found.shape == std::vector<std::int64_t>{2, 5, 2, 3});
  std::vector<float> numbers(60);
  std::memcpy(numbers.data(), found.bytes.data(), found.bytes.size());
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    const std::size_t n = index / 30, c = index / 6 % 5, h = index / 3 % 2, w = index % 3;
    REQUIRE(numbers[index] == static_cast<float>(n * 30 + h * 15 + w * 5 + c));
  }
  std::vector<float> square(4);
  std::memcpy(square.data(), exported.tensors.at("model.square").bytes.data(), 16);
  CHECK(square == std::vector<float>{0, 2, 1, 3});
}

TEST_CASE("export: a type that safetensors lacks is named", "[unit][cli]") {
  ExportScene scene;
  const auto path = scene.publish(
      1, {{{made<std::uint8_t>("model.z", DType::u8, {3, 16}, 0)},
           {{items_blob, R"({"z":{"t":"model.z","torch":"complex128","shape":[3]}})"}}}});
  CHECK_THAT(scene.error_of(path), Contains("\"model.z\" is of type complex128"));
  const auto wrong = scene.publish(
      2, {{{floats("model.z", {3, 4}, 0)},
           {{items_blob, R"({"z":{"t":"model.z","torch":"float32","shape":[4,4]}})"}}}});
  CHECK_THAT(scene.error_of(wrong), Contains("another shape"));
  const auto unreadable = scene.publish(3, {{{floats("a", {3}, 0)}, {{items_blob, "nonsense"}}}});
  CHECK_THAT(scene.error_of(unreadable), Contains("rank 0: the structure of the items"));
}

TEST_CASE("export: files are filled up to their size, and the index names them", "[unit][cli]") {
  ExportScene scene;
  const auto path =
      scene.publish(1, {{{floats("l.1", {4}, 1), floats("l.2", {4}, 2), floats("l.10", {4}, 3),
                          made<std::uint8_t>("l.3", DType::u8, {3}, 1), floats("l.4", {30}, 1)},
                         {}}});
  scene.order.directory = "/out/hf";
  scene.order.makes_directory = scene.order.is_whole_directory = true;
  scene.wish = sharded(35);
  const auto paths = scene.try_export(path);
  REQUIRE((paths ? "" : paths.error().message()) == "");
  REQUIRE(paths->size() == 4);
  CHECK(paths->front() == "/out/hf/model-00001-of-00003.safetensors");
  CHECK(paths->back() == "/out/hf/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(scene.disk.content(paths->back()));
  CHECK(index["metadata"]["total_size"] == 171);
  CHECK(index["weight_map"].size() == 5);
  const std::vector<std::vector<std::string>> expected = {{"l.1", "l.2", "l.3"}, {"l.4"}, {"l.10"}};
  for (std::size_t number = 0; number < expected.size(); ++number) {
    const Exported file = parsed(scene.disk.content((*paths)[number]));
    CHECK(file.tensors.size() == expected[number].size());
    for (const std::string& name : expected[number]) {
      CHECK(file.tensors.contains(name));
      CHECK("/out/hf/" + index["weight_map"][name].get<std::string>() == (*paths)[number]);
    }
  }

  SECTION("one file has no index, and takes the place of all others") {
    scene.wish = sharded(1000);
    CHECK_THAT(scene.error_of(path), Contains("exists") && Contains("--force"));
    scene.disk.put("/out/hf/config.json", "{}");
    scene.order.replaces = true;
    REQUIRE(scene.try_export(path));
    CHECK(scene.names_in_out() ==
          std::vector<std::string>{"hf/", "hf/config.json", "hf/model.safetensors"});
  }
  SECTION("several files take the place of one, which would be opened first") {
    scene.disk.put("/out/hf/model.safetensors", "old");
    scene.order.replaces = true;
    scene.wish = sharded(140);
    REQUIRE(scene.try_export(path));
    CHECK(scene.names_in_out() == std::vector<std::string>{"hf/",
                                                           "hf/model-00001-of-00002.safetensors",
                                                           "hf/model-00002-of-00002.safetensors",
                                                           "hf/model.safetensors.index.json"});
  }
}

TEST_CASE("export: after any failure no file is half-written and no index is wrong",
          "[unit][cli]") {
  const bool is_old_there = GENERATE(false, true);
  for (std::uint64_t operation = 0;; ++operation) {
    ExportScene scene;
    const auto path = scene.publish(1, {{{rows("a", {6, 3}, 0, 3, 1)}, {}},
                                        {{rows("a", {6, 3}, 3, 3, 1), floats("b", {9}, 1)}, {}}});
    scene.order.is_whole_directory = true;
    scene.order.replaces = is_old_there;
    if (is_old_there) {
      scene.wish = sharded(1);
      const auto old = scene.publish(2, {{{floats("x", {1}, 1), floats("y", {1}, 2)}, {}}});
      REQUIRE(scene.try_export(old));
    }
    scene.wish = sharded(40);
    const auto step = scene.open_step(path);
    const ItemForms none;
    const auto plan = plan_export(
        step->tensors, [&](std::uint32_t) -> const ItemForms& { return none; }, scene.wish);
    REQUIRE(plan);
    REQUIRE(plan->files.size() == 2);
    scene.order.attempt = 77;
    test::MemoryDisk::Fault fault;
    fault.is_partial = true;
    const std::uint64_t operations_before = scene.disk.operations();
    scene.disk.fail_at(operation, fault);
    const auto paths = scene.run(write_export(scene.files, *step->shards, *plan, scene.order));
    scene.disk.clear_faults();
    const auto names = scene.names_in_out();
    const bool has_index = scene.disk.exists("/out/model.safetensors.index.json");
    for (const std::string& name : names) {
      CHECK_FALSE(name.ends_with(".partial"));
      if (name.ends_with(".safetensors")) parsed(scene.disk.content("/out/" + name));
    }
    if (has_index) {
      const auto map = nlohmann::json::parse(
          scene.disk.content("/out/model.safetensors.index.json"))["weight_map"];
      for (const auto& [name, file] : map.items())
        CHECK(parsed(scene.disk.content("/out/" + file.get<std::string>())).tensors.contains(name));
      CHECK((map.contains("a") || !paths));
    }
    const std::uint64_t operations = scene.disk.operations() - operations_before;
    if (!paths) continue;
    CHECK(has_index);
    check_same(parsed(scene.disk.content(paths->front())).tensors.at("a"), floats("", {6, 3}, 1));
    // A reported export is there after a loss of power.
    scene.disk.crash(test::Survival::nothing);
    CHECK(scene.names_in_out() == names);
    for (const std::string& each : *paths) CHECK_FALSE(scene.disk.content(each).empty());
    if (operation < operations) continue;  // It went on without what failed.
    CHECK(operation > 10);
    break;
  }
}

TEST_CASE("export: gaps, damage and full disks are named, and nothing is left", "[unit][cli]") {
  ExportScene scene;
  const auto gap = scene.publish(
      1, {{{rows("model.w", {6, 3}, 0, 3, 1)}, {}}, {{rows("model.w", {6, 3}, 4, 2, 1)}, {}}});
  CHECK_THAT(scene.error_of(gap), Contains("no rank has saved model.w[3:4, :]"));
  const auto whole = scene.publish(2, {{{floats("model.w", {600}, 1)}, {}}});
  SECTION("damage") {
    const std::string file = whole + "/rank-00000.safetensors";
    scene.disk.flip(file, scene.disk.content(file).size() - 1, 0);
    const auto damaged = scene.try_export(whole);
    REQUIRE_FALSE(damaged);
    CHECK(damaged.error().code() == Errc::corruption);
    CHECK_THAT(damaged.error().message(), Contains("rank-00000.safetensors"));
  }
  SECTION("a full disk") {
    scene.disk.set_capacity(scene.disk.used_bytes() + 1000);
    const auto full = scene.try_export(whole);
    REQUIRE_FALSE(full);
    CHECK_THAT(full.error().message(), Contains("/out"));
  }
  SECTION("a signal") {
    scene.order.is_cancelled = [] { return true; };
    const auto stopped = scene.try_export(whole);
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().code() == Errc::cancelled);
  }
  SECTION("a directory that is not there") {
    scene.order.directory = "/nowhere";
    CHECK_THAT(scene.error_of(whole), Contains("/nowhere"));
  }
  SECTION("a directory in the place of the file") {
    scene.disk.put_directory("/out/model.safetensors");
    CHECK_THAT(scene.error_of(whole), Contains("is a directory"));
    scene.disk.erase("/out/model.safetensors");
  }
  CHECK(scene.names_in_out().empty());
}

TEST_CASE("export: which files are a model's", "[unit][cli]") {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
        "model-123456-of-123456.safetensors"})
    CHECK(is_model_file(name));
  for (const char* name : {"config.json", "model-1-of-2.safetensors", "model-00001.safetensors",
                           "model-0000a-of-00002.safetensors", "xmodel.safetensors",
                           "model-00001-of-00002.bin", "adapter_model.safetensors"})
    CHECK_FALSE(is_model_file(name));
}

}  // namespace ckpt::cli
