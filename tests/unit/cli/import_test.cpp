// Goal:   files that other programs wrote become a checkpoint with the same tensors, or an error
// that
//         says what is wrong with which file.
// Method: safetensors files from our own export and from bytes by hand, and torch archives from our
//         own writer with pickles by hand. The checkpoint is exported again and compared. Sizes
//         probe the borders of Chunks.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/import_source.hpp"
#include "cli/import_write.hpp"
#include "cli/workplace.hpp"
#include "format/torch_archive.hpp"
#include "storage/member_reader.hpp"
#include "support/found_checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "unit/cli/made_steps.hpp"
#include "unit/format/torch_pickle.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;
using test::little;
using Bytes = std::vector<std::byte>;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A safetensors file, with offsets as they are given.
std::string safetensors(const std::string& header, const std::string& data) {
  return little(header.size(), 8) + header + data;
}
std::string of_tensors(const std::vector<MadeTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const MadeTensor& tensor : tensors) {
    const std::size_t end = data.size() + tensor.bytes.size();
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
    data += text_of(tensor.bytes);
  }
  return safetensors(header.dump(), data);
}

// A torch archive of these entries.
std::string archive(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<format::TensorSpec> specs;
  for (const auto& [name, content] : entries) {
    format::TensorSpec spec;
    spec.name = "a.pt//" + name;
    spec.shape = {static_cast<std::int64_t>(content.size())};
    spec.archive = "a.pt";
    specs.push_back(spec);
  }
  const format::Layout layout = format::make_layout(specs, 0, 0).value();
  Bytes slot(layout.slot_bytes);
  for (const format::TensorPlace& place : layout.tensors) {
    const auto entry = std::ranges::find_if(
        entries, [&](const auto& each) { return "a.pt//" + each.first == place.name; });
    std::memcpy(slot.data() + place.extent.offset, entry->second.data(), entry->second.size());
  }
  format::finish_archives(layout, slot);
  const auto member =
      std::ranges::find(layout.members, format::MemberKind::torch, &format::Member::kind);
  return text_of(slot).substr(member->extent.offset, member->extent.bytes);
}

class ImportScene {
 public:
  std::string put(const std::string& name, const std::string& content) const {
    std::ofstream(directory.file(name), std::ios::binary) << content;
    return directory.file(name);
  }
  Result<Outcome> run(std::vector<std::string> from) {
    given.from = std::move(from);
    if (given.to.empty()) given.to = directory.file("run");
    return import_tensors(given);
  }
  Outcome must(std::vector<std::string> from) {
    auto outcome = run(std::move(from));
    REQUIRE((outcome ? "" : outcome.error().message()) == "");
    return *outcome;
  }
  std::string refusal(const std::string& from) {
    const auto outcome = run({from});
    REQUIRE_FALSE(outcome);
    CHECK_FALSE(std::filesystem::exists(given.to + "/step-000000000"));
    return outcome.error().message();
  }
  // A reader's view of the checkpoint, by name.
  std::map<std::string, Bytes> stored(std::uint64_t step = 0) {
    const std::string path = given.to + "/" + storage::step_directory_name(Step{step});
    const auto report = workplace.run(storage::verify_checkpoint(workplace.files(), path));
    REQUIRE((report && report->is_good()));
    const auto opened = workplace.run(open_stored_step(workplace.site(given.to)));
    REQUIRE(opened);
    const auto record = workplace.run((*opened)->shards->whole_record(0));
    REQUIRE(record);
    Bytes slot((*record)->bytes);
    REQUIRE(workplace.run(
        storage::read_shard(workplace.files(), storage::ShardPlace(path), *record, slot, {})));
    std::map<std::string, Bytes> tensors;
    for (const format::TensorPlace& place : (*record)->layout.tensors) {
      const auto bytes = std::span(slot).subspan(place.extent.offset, place.extent.bytes);
      tensors[place.name] = Bytes(bytes.begin(), bytes.end());
      if (!place.alias_of.empty()) aliases[place.name] = place.alias_of;
    }
    return tensors;
  }

  test::TemporaryDirectory directory;
  Workplace workplace;
  ImportOptions given{.prefix = ""};
  std::map<std::string, std::string> aliases;
};

}  // namespace

TEST_CASE_METHOD(ImportScene, "import: a safetensors file becomes a checkpoint", "[unit][cli]") {
  // The second one goes over the borders of several Chunks.
  const auto small = floats("layer.weight", {2, 3}, 1), large = floats("embed", {3, 1 << 20}, 5);
  const auto nothing = floats("none", {0, 4}, 0);
  given.prefix = "model.";
  given.step = 7;
  const Outcome outcome = must({put("m.safetensors", of_tensors({small, large, nothing}))});
  CHECK_THAT(outcome.text,
             Contains("step-000000007: 3 tensors of 12.0 MiB from 1 file, as job run"));
  CHECK(outcome.json["tensors"] == 3);
  const auto tensors = stored(7);
  CHECK(tensors.size() == 3);
  CHECK(tensors.at("model.layer.weight") == small.bytes);
  CHECK(tensors.at("model.embed") == large.bytes);
  CHECK(tensors.at("model.none").empty());
  // A directory with a checkpoint is not a new one.
  CHECK_THAT(run({put("m.safetensors", of_tensors({small}))}).error().text(),
             Contains("it has step-000000007 already"));
}

TEST_CASE_METHOD(ImportScene, "import: a model of several files, by its index or its directory",
                 "[unit][cli]") {
  std::filesystem::create_directory(directory.file("model"));
  const auto one = floats("one", {5}, 1), other = floats("other", {7}, 9);
  put("model/a.safetensors", of_tensors({one}));
  put("model/b.safetensors", of_tensors({other}));
  const auto index = [&](const std::string& map) {
    return put("model/model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  };
  SECTION("whole") {
    index(R"("one":"a.safetensors","other":"b.safetensors")");
    SECTION("by its directory") {
      must({directory.file("model")});
    }
    SECTION("by its index") {
      must({directory.file("model/model.safetensors.index.json")});
    }
    SECTION("by the directory with a slash") {
      must({directory.file("model/")});
    }
    SECTION("through links, as a cache has it") {
      std::filesystem::create_directory(directory.file("snapshot"));
      std::filesystem::create_directory(directory.file("blobs"));
      for (const char* name : {"a.safetensors", "b.safetensors", "model.safetensors.index.json"}) {
        std::filesystem::rename(directory.file("model") + "/" + name,
                                directory.file("blobs") + "/x" + name);
        std::filesystem::create_symlink(std::string("../blobs/x") + name,
                                        directory.file("snapshot") + "/" + name);
      }
      must({directory.file("snapshot")});
    }
    const auto tensors = stored();
    CHECK(tensors.at("one") == one.bytes);
    CHECK(tensors.at("other") == other.bytes);
  }
  SECTION("that lacks a tensor") {
    index(R"("one":"a.safetensors","other":"b.safetensors","third":"b.safetensors")");
    CHECK_THAT(refusal(directory.file("model")), Contains("b.safetensors lacks tensor \"third\""));
  }
  SECTION("with one that the index does not know") {
    index(R"("one":"a.safetensors","two":"b.safetensors")");
    CHECK_THAT(refusal(directory.file("model")), Contains("which the index does not say"));
  }
  SECTION("that lacks a file") {
    index(R"("one":"c.safetensors")");
    CHECK_THAT(refusal(directory.file("model")), Contains("c.safetensors"));
  }
  SECTION("outside of its directory") {
    put("secret.safetensors", of_tensors({one}));
    index(R"("one":"../secret.safetensors")");
    CHECK_THAT(refusal(directory.file("model")), Contains("does not name a file beside it"));
  }
  SECTION("of no JSON") {
    put("model/model.safetensors.index.json", "{");
    CHECK_THAT(refusal(directory.file("model")), Contains("it has no weight_map"));
  }
}

TEST_CASE_METHOD(ImportScene, "import: tensors of a torch archive, tied ones too", "[unit][cli]") {
  const auto weights = floats("", {6}, 1), bias = floats("", {3}, 8);
  const std::string pickle = test::pickle(test::dict(
      {{"model",
        test::dict(
            {{"w", test::tensor({})},
             {"tied", test::tensor({})},
             {"row", test::tensor({.offset = 3, .shape = {3}, .strides = {1}})},
             {"b", test::tensor({.key = "1", .elements = 3, .shape = {3}, .strides = {1}})}})},
       {"step", test::integer(3)}}));
  std::vector<std::pair<std::string, std::string>> entries{{"data.pkl", pickle},
                                                           {"byteorder", "little"},
                                                           {"data/0", text_of(weights.bytes)},
                                                           {"data/1", text_of(bias.bytes)},
                                                           {"version", "3\n"}};
  SECTION("as it is") {
    const Outcome outcome = must({put("m.pt", archive(entries))});
    CHECK_THAT(outcome.text, Contains("Left out: 1 value that is no tensor"));
    const auto tensors = stored();
    CHECK(tensors.size() == 4);
    CHECK(tensors.at("model.w") == weights.bytes);
    CHECK(tensors.at("model.tied") == weights.bytes);
    CHECK(tensors.at("model.row") == Bytes(weights.bytes.begin() + 12, weights.bytes.end()));
    CHECK(tensors.at("model.b") == bias.bytes);
    CHECK(aliases == std::map<std::string, std::string>{{"model.tied", "model.w"}});
  }
  SECTION("of another byte order") {
    entries[1].second = "big";
    CHECK_THAT(refusal(put("m.pt", archive(entries))), Contains("not little-endian"));
  }
  SECTION("with a storage of another size") {
    entries[3].second.pop_back();
    CHECK_THAT(refusal(put("m.pt", archive(entries))),
               Contains("tensor \"model.b\"") && Contains("data/1"));
  }
  SECTION("without a storage") {
    entries.erase(entries.begin() + 3);
    CHECK_THAT(refusal(put("m.pt", archive(entries))), Contains("data/1 is missing"));
  }
  SECTION("with a flipped bit") {
    std::string file = archive(entries);
    const std::size_t at = file.find(text_of(bias.bytes));
    file[at + 2] = static_cast<char>(file[at + 2] ^ 4);
    CHECK_THAT(refusal(put("m.pt", file)), Contains("data/1") && Contains("its checksum"));
  }
  SECTION("that would run code") {
    entries[0].second =
        test::pickle(test::name("os", "system") + test::tuple({test::text("touch x")}) + "R");
    CHECK_THAT(refusal(put("m.pt", archive(entries))), Contains("os.system"));
  }
  SECTION("without a pickle") {
    entries.erase(entries.begin());
    CHECK_THAT(refusal(put("m.pt", archive(entries))), Contains("data.pkl"));
  }
}

TEST_CASE_METHOD(ImportScene, "import: a file that is no model is refused with the reason",
                 "[unit][cli]") {
  const auto one = floats("one", {2}, 1);
  const std::string data(8, 'x');
  const auto header = [&](const std::string& shape, const std::string& offsets) {
    return safetensors(
        R"({"one":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
  };
  CHECK_THAT(refusal(put("a", header("[3]", "[0,8]"))), Contains("another size than its shape"));
  CHECK_THAT(refusal(put("a", header("[1]", "[4,8]"))), Contains("overlaps another or leaves"));
  CHECK_THAT(refusal(put("a", header("[4]", "[0,16]"))), Contains("behind the end of the file"));
  CHECK_THAT(refusal(put("a", header("[4294967296,4294967296,4]", "[0,8]"))), Contains("one"));
  CHECK_THAT(refusal(put("a", little(1u << 31, 8) + "{}")), Contains("it claims"));
  CHECK_THAT(refusal(put("a", "")), Contains("too short"));
  CHECK_THAT(refusal(put("a", "\x80\x02}q\x01(X\x01")), Contains("bare pickle"));
  CHECK_THAT(refusal(put("a", safetensors("{}", ""))), Contains("there are no tensors"));
  CHECK_THAT(refusal(""), Contains("name a file"));
  CHECK_THAT(refusal(directory.file("missing")), Contains("missing"));
  CHECK_THAT(refusal(directory.path()), Contains("name the file itself"));
  const std::string good = put("good", of_tensors({one}));
  CHECK_THAT(run({good, good}).error().text(), Contains("tensor \"one\" is there twice"));
  given.to = directory.file("none/run");
  CHECK_THAT(refusal(good), Contains("its parent directory does not exist"));
  given.to = good;
  CHECK_THAT(run({good}).error().text(), Contains("it is not a directory"));
  given.to = directory.file("a name");
  CHECK_THAT(refusal(good), Contains("--job"));
}

TEST_CASE("import: whichever operation fails, no half checkpoint stays", "[unit][cli]") {
  test::StorageFixture scene;
  const auto tensor = floats("one", {3000}, 1);
  scene.disk.put("/scratch/m.safetensors", of_tensors({tensor}));
  int failing = 0;
  for (bool has_failed = true; has_failed; ++failing) {
    const std::string to = "/scratch/to" + std::to_string(failing);
    const storage::Site site(scene.files, scene.clock, to);
    auto source = std::make_shared<ImportSource>();
    source->paths = {"/scratch/m.safetensors"};
    source->files.push_back(
        *scene.run(scene.files.open_read(source->paths[0], os::Caching::buffered)));
    ImportTensor imported;
    imported.spec = {"one", DType::f32, {3000}, {}, {}, {}};
    const std::uint64_t file_bytes = scene.disk.content(source->paths[0]).size();
    imported.bytes = {file_bytes - 12000, 12000};
    source->tensors.push_back(imported);
    ImportOrder order;
    order.job = "job";
    order.fresh_run = test::test_run;
    order.attempt = 5;
    order.chunk_bytes = page_bytes;
    int count = 0;
    has_failed = false;
    scene.disk.set_hook([&](std::string_view, const std::string&) {
      if (count++ != failing) return 0;
      has_failed = true;
      return failing % 2 == 0 ? ENOSPC : EIO;
    });
    const auto published = scene.run(write_import(site, source, order));
    scene.disk.set_hook(nullptr);
    CAPTURE(failing);
    const auto found =
        scene.run(test::find_checkpoint(storage::Site(scene.files, scene.clock, to)));
    if (published) CHECK(found);
    if (!found) continue;
    const auto report = scene.run(storage::verify_checkpoint(scene.files, found->directory));
    REQUIRE(report);
    CHECK(report->is_good());
  }
  CHECK(failing > 20);
}

}  // namespace ckpt::cli
