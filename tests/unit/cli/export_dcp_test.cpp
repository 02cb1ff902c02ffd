// Goal:   a folder that is exported for torch.distributed.checkpoint is whole or not there, and
// names
//         every tensor. That stock torch loads it is tests/python/test_export.py's to show.
// Method: small checkpoints on a disk in memory. Every operation of the disk fails once.
#include "format/dcp_metadata.hpp"
#include "unit/cli/export_scene.hpp"

namespace ckpt::cli {
namespace {

using Catch::Contains;
using std::string_literals::operator""s;

}  // namespace

TEST_CASE("export: a folder for DCP has an archive for each tensor, and says where",
          "[unit][cli]") {
  ExportScene scene;
  scene.order.kind = ExportKind::dcp;
  scene.order.directory = "/out/folder";
  scene.order.makes_directory = scene.order.is_whole_directory = true;
  scene.wish.file_name = format::dcp_file_name;
  const MadeTensor bias = floats("m.bias", {3}, 5);
  const auto path =
      scene.publish(2, {{{rows("m.w", {500, 30}, 0, 200, 10), bias, tied("m.tied", bias)}, {}},
                        {{rows("m.w", {500, 30}, 200, 300, 10)}, {}}});
  const auto paths = scene.try_export(path);
  REQUIRE((paths ? "" : paths.error().message()) == "");
  CHECK(*paths == std::vector<std::string>{"/out/folder/__0_0.distcp", "/out/folder/.metadata"});
  const std::string metadata = scene.disk.content("/out/folder/.metadata");
  for (const char* name : {"m.w", "m.bias", "m.tied", "__0_0.distcp"})
    CHECK(metadata.find(name) != std::string::npos);
  // Each archive is one that can be read by itself.
  const std::string file = scene.disk.content("/out/folder/__0_0.distcp");
  const std::size_t end = file.find("PK\x05\x06");
  REQUIRE(end != std::string::npos);
  for (const std::string& archive : {file.substr(0, end + 22), file.substr(end + 22)}) {
    CHECK(archive.starts_with("PK\x03\x04"));
    CHECK(archive.find("PK\x05\x06") == archive.size() - 22);
  }

  SECTION("what an older checkpoint left there goes with --force, and nothing else does") {
    scene.disk.put("/out/folder/__3_0.distcp", "old");
    scene.disk.put("/out/folder/notes.txt", "mine");
    CHECK_THAT(scene.error_of(path), Contains("exists") && Contains("--force"));
    scene.order.replaces = true;
    REQUIRE(scene.try_export(path));
    CHECK(scene.names_in_out() == std::vector<std::string>{"folder/", "folder/.metadata",
                                                           "folder/__0_0.distcp",
                                                           "folder/notes.txt"});
  }
}

TEST_CASE("export: whatever fails, a folder for DCP has no `.metadata` of other bytes",
          "[unit][cli]") {
  for (std::uint64_t operation = 0;; ++operation) {
    ExportScene scene;
    scene.order.kind = ExportKind::dcp;
    scene.order.is_whole_directory = scene.order.replaces = true;
    scene.wish.file_name = format::dcp_file_name;
    const auto old = scene.publish(2, {{{floats("x", {1}, 1), floats("y", {1}, 2)}, {}}});
    REQUIRE(scene.try_export(old));
    const std::string old_file = scene.disk.content("/out/__0_0.distcp");
    const auto path = scene.publish(1, {{{floats("a", {9}, 1)}, {}}});
    const auto step = scene.open_step(path);
    const ItemForms none;
    const auto plan = plan_export(
        step->tensors, [&](std::uint32_t) -> const ItemForms& { return none; }, scene.wish);
    REQUIRE(plan);
    scene.order.attempt = 77;
    test::MemoryDisk::Fault fault;
    fault.is_partial = true;
    const std::uint64_t before = scene.disk.operations();
    scene.disk.fail_at(operation, fault);
    const auto paths = scene.run(write_export(scene.files, *step->shards, *plan, scene.order));
    scene.disk.clear_faults();
    for (const std::string& name : scene.names_in_out()) CHECK_FALSE(name.ends_with(".partial"));
    const std::string metadata = scene.disk.content("/out/.metadata");
    const bool is_old = scene.disk.content("/out/__0_0.distcp") == old_file;
    if (!metadata.empty()) CHECK((metadata.find("TensorStorage") != std::string::npos));
    if (!metadata.empty()) CHECK((metadata.find("X\x01\0\0\0x"s) != std::string::npos) == is_old);
    if (paths) CHECK_FALSE(is_old);
    if (paths && scene.disk.operations() - before <= operation) break;
  }
}

}  // namespace ckpt::cli
