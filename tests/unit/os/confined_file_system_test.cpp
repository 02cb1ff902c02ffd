// Goal:   a change that Landlock refused is reported with the directories where files may change,
//         and an error of another origin stays as it is.
// Method: a memory disk refuses; directories are put in the place of named ones. Then the real
//         FileSystems, in a forked child that Landlock restricts.
#include "os/confined_file_system.hpp"

#include <catch2/catch.hpp>
#include <cerrno>

#include "os/landlock.hpp"
#include "os/path.hpp"
#include "os/pool_file_system.hpp"
#include "os/posix_files.hpp"
#include "os/ring_file_system.hpp"
#include "support/in_child.hpp"
#include "support/memory_file_system.hpp"
#include "support/random_bytes.hpp"
#include "support/run_task.hpp"
#include "support/temporary_directory.hpp"

using Catch::Contains;

namespace ckpt::os {
namespace {

// Files may change below /ckpt and /scratch/a.
struct Confined {
  Confined() {
    for (const char* path : {"/ckpt/job", "/scratch/a/job", "/scratch/b/job"})
      disk.put_directory(path);
    disk.set_hook(
        [this](std::string_view verb, const std::string&) { return verb == "status" ? 0 : error; });
    std::vector<ConfinedTo> named{see("/ckpt"), see("/scratch/a")};
    files = explain_confinement(std::make_unique<test::MemoryFileSystem>(disk), std::move(named));
  }
  ConfinedTo see(const std::string& path) {
    test::MemoryFileSystem plain(disk);
    const FileStatus status = test::run_task(context, plain.status(path)).value();
    return {path, status.device, status.inode};
  }
  Error make(const std::string& path) {
    const Status made = test::run_task(context, files->make_directory(path));
    REQUIRE_FALSE(made);
    return made.error();
  }

  asio::io_context context;
  test::MemoryDisk disk;
  int error = EACCES;
  std::unique_ptr<FileSystem> files;
};

}  // namespace

TEST_CASE("confined: what is refused outside names the directories, and how to add one",
          "[unit][os]") {
  Confined confined;
  const std::string path = GENERATE("/scratch/b/job/step", "/scratch/new", "/new", "/ckpt2");
  const Error error = confined.make(path);
  CHECK(error.code() == Errc::io);
  CHECK(error.cause() == std::errc::permission_denied);
  CHECK_THAT(error.text(), Contains(path));
  CHECK_THAT(error.text(), Contains("the daemon changes files only below /ckpt and /scratch/a"));
  CHECK_THAT(error.text(), Contains("LIBCKPT_CONFINE_TO"));
}

TEST_CASE("confined: every call that changes something is explained", "[unit][os]") {
  Confined confined;
  FileSystem& files = *confined.files;
  const std::string path = beneath("/scratch/b/job", "file");
  std::vector<std::byte> bytes(1);
  const auto is_explained = [&](auto task) {
    const auto result = test::run_task(confined.context, std::move(task));
    return !result && Contains("only below /ckpt").match(result.error().text());
  };
  CHECK(is_explained(files.create(path, Caching::buffered)));
  CHECK(is_explained(files.write_small(path, bytes)));
  CHECK(is_explained(files.append_small(path, bytes, Syncing::later)));
  CHECK(is_explained(files.make_directory(path)));
  CHECK(is_explained(files.rename(path, path + "2", RenameMode::replace)));
  CHECK(is_explained(files.remove_file(path)));
  CHECK(is_explained(files.remove_directory(path)));
  // Landlock does not restrict these, so it is not the reason.
  CHECK_FALSE(is_explained(files.open_read(path, Caching::buffered)));
  CHECK_FALSE(is_explained(files.list(path)));
}

TEST_CASE("confined: a refusal inside, and any other error, stays as it is", "[unit][os]") {
  Confined confined;
  CHECK_THAT(confined.make("/ckpt/job/step").text(), !Contains("LIBCKPT_CONFINE_TO"));
  CHECK_THAT(confined.make("/scratch/a/step").text(), !Contains("LIBCKPT_CONFINE_TO"));
  confined.error = ENOSPC;
  CHECK_THAT(confined.make("/scratch/b/step").text(), !Contains("LIBCKPT_CONFINE_TO"));
  // The directory itself is not there: nobody knows what the kernel would say.
  confined.error = EACCES;
  CHECK_THAT(confined.make("/gone/job/step").text(), !Contains("LIBCKPT_CONFINE_TO"));
}

TEST_CASE("confined: a named directory that was made anew is named as that", "[unit][os]") {
  Confined confined;
  confined.disk.unmount("/scratch/a");
  const Error error = confined.make("/scratch/a/job");
  CHECK_THAT(error.text(), Contains("/scratch/a was unmounted or made anew"));
  CHECK_THAT(error.text(), Contains("start it again"));
  confined.disk.mount("/scratch/a");
  CHECK_THAT(confined.make("/scratch/a/job").text(), !Contains("made anew"));
}

TEST_CASE("confined: real files are written by the ring and by threads, and refused outside",
          "[unit][os]") {
  if (landlock_version() < landlock_version_wanted) {
    WARN("left out: this kernel has no Landlock of version 2");
    return;
  }
  const bool on_ring = GENERATE(true, false);
  const test::TemporaryDirectory directory;
  const std::string in = directory.file("in"), out = directory.file("out");
  for (const std::string& path : {in, out}) std::filesystem::create_directory(path);
  std::filesystem::create_directory_symlink(out, in + "/link");
  const auto bytes = test::random_bytes(8192, 7);
  CHECK(test::in_child([&]() -> std::string {
          const MayChange places[] = {{MayChange::What::tree, in}};
          if (!restrict_changes(places)) return "not restricted";
          auto ring = make_ring_file_system();
          if (on_ring && !ring) return {};
          asio::io_context context;  // The threads of the files let go of it.
          const FileStatus seen = status_of(in + "/.").value();
          const auto files =
              explain_confinement(on_ring ? std::move(*ring) : make_pool_file_system(2),
                                  std::vector<ConfinedTo>{{in, seen.device, seen.inode}});
          auto file = test::run_task(context, files->create(beneath(in, "file"), Caching::direct));
          if (!file) return file.error().message();
          for (const Status& done :
               {test::run_task(context, (*file)->write_at(0, bytes)),
                test::run_task(context, (*file)->sync_data()),
                test::run_task(context, (*file)->close()),
                test::run_task(context, files->sync_directory(beneath(in, ".")))})
            if (!done) return done.error().message();
          for (const std::string& place : {out, in + "/link", out + "/../out"}) {
            const auto other =
                test::run_task(context, files->create(beneath(place, "file"), Caching::direct));
            if (other) return "made in " + place;
            const std::string text = other.error().text();
            if (text.find("only below " + in) == std::string::npos) return text;
          }
          return {};
        }) == "");
  CHECK(std::filesystem::is_empty(out));
}

}  // namespace ckpt::os
