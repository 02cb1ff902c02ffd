// Goal:   an export removes the hidden files that a killed one left in its place, and none of one
//         that is under way here or on another machine.
// Method: such files of some age on the real disk, and the lock of another export beside them.
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "cli/export_lock.hpp"
#include "cli/left_partials.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {
namespace {

const std::string left = ".model.safetensors.0123456789abcdef.partial";
const std::string other = ".other.safetensors.0123456789abcdef.partial";
const std::string foreign = ".model.safetensors.notes.partial";
// As long as the number of an attempt, and none.
const std::string worded = ".model.safetensors.my-notes-of-june.partial";

struct Scene : StoredRun {
  Scene() {
    save(1);
    std::filesystem::create_directory(out);
    for (const std::string& name : {left, other, foreign, worded})
      put(name, std::chrono::minutes(61));
  }
  void put(const std::string& name, std::chrono::minutes age) const {
    const std::string path = out + "/" + name;
    std::ofstream(path) << "x";
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(path, now - age);
  }
  void must_export(const std::string& format, const std::string& to) const {
    ExportOptions order;
    order.path = dir;
    order.out = to;
    order.format = format;
    order.rank = 0;
    order.force = true;
    order.json = true;
    const auto exported = export_tensors(order);
    REQUIRE((exported ? "" : exported.error().message()) == "");
  }
  bool has(const std::string& name) const { return std::filesystem::exists(out + "/" + name); }

  const std::string out = directory.file("out");
};

}  // namespace

TEST_CASE("export: what a killed export left is removed by the next one to its place",
          "[unit][cli]") {
  const Scene scene;
  scene.must_export("safetensors", scene.out + "/model.safetensors");
  CHECK_FALSE(scene.has(left));
  CHECK(scene.has(other));  // Of another place.
  CHECK(scene.has(foreign));
  CHECK(scene.has(worded));
  CHECK(scene.has("model.safetensors"));
}

TEST_CASE("export: a directory of a model is cleared of all its hidden files", "[unit][cli]") {
  const Scene scene;
  const std::string shard = ".model-00002-of-00003.safetensors.0123456789abcdef.partial";
  scene.put(shard, std::chrono::minutes(61));
  scene.must_export("hf", scene.out);
  CHECK_FALSE(scene.has(shard));
  CHECK_FALSE(scene.has(left));
  CHECK(scene.has(foreign));
  CHECK(scene.has(worded));
}

TEST_CASE("export: hidden files stay while another export works beside them", "[unit][cli]") {
  const Scene scene;
  {
    ExportLock lock(scene.out);
    CHECK(lock.is_alone());
    lock.share();
    scene.must_export("safetensors", scene.out + "/model.safetensors");
    CHECK(scene.has(left));
    CHECK_FALSE(ExportLock(scene.out).is_alone());
  }
  scene.must_export("safetensors", scene.out + "/model.safetensors");
  CHECK_FALSE(scene.has(left));
}

// No lock is shared between machines on NFS.
TEST_CASE("export: files of an attempt that wrote one within the hour stay", "[unit][cli]") {
  const Scene scene;
  const std::string shard = ".model-00002-of-00003.safetensors.0123456789abcdef.partial";
  const std::string older = ".model.safetensors.fedcba9876543210.partial";
  scene.put(shard, std::chrono::minutes(50));
  scene.put(older, std::chrono::minutes(61));
  scene.must_export("safetensors", scene.out + "/model.safetensors");
  CHECK(scene.has(left));  // Complete, while the next file of its attempt is being written.
  CHECK(scene.has(shard));
  CHECK_FALSE(scene.has(older));
}

// Another machine has removed it, too; or it is another user's, in a directory for all.
TEST_CASE("left partials: one that cannot be removed stops nobody", "[unit][cli]") {
  const int error = GENERATE(ENOENT, EACCES);
  const std::string mine = "/out/.b.safetensors.0123456789abcdef.partial";
  test::MemoryDisk disk(1);
  disk.put("/out/.a.safetensors.0123456789abcdef.partial", "x");
  disk.put(mine, "x");
  disk.set_hook([error](std::string_view verb, const std::string& path) {
    return verb == "remove_file" && path.find("/.a.") != std::string::npos ? error : 0;
  });
  test::MemoryFileSystem files(disk);
  asio::io_context context;
  IsOurs is_ours = [](std::string_view) { return true; };
  auto removed = test::start(
      context, remove_left_partials(files, "/out", is_ours, std::chrono::system_clock::now()));
  context.run();
  REQUIRE((removed.result() ? "" : removed.result().error().message()) == "");
  CHECK_FALSE(disk.exists(mine));
}

TEST_CASE("export lock: nobody is alone in a directory that is not there", "[unit][cli]") {
  const Scene scene;
  ExportLock lock(scene.out + "/none");
  CHECK_FALSE(lock.is_alone());
  lock.share();
  CHECK_FALSE(lock.is_alone());
}

}  // namespace ckpt::cli
