// Goal:   a daemon and its trainers meet only in a directory that nobody else can reach into.
// Method: open directories that are right, missing, open to others, links and files, and
//         require the clear refusal; hold a lock twice.
#include "os/runtime_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace ckpt::os {
namespace {

struct Scratch {
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string refusal(const std::string& path) {
  const auto opened = RuntimeDirectory::open(path);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code() == Errc::invalid_argument);
  return opened.error().text();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("runtime directory: it is created for us alone", "[unit][os]") {
  const Scratch scratch;
  const std::string path = scratch.path + "/run";
  const auto opened = RuntimeDirectory::open(path + "/");
  REQUIRE(opened);
  CHECK(opened->path() == path);
  CHECK(opened->socket() == path + "/ckptd.sock");
  struct stat status{};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0700);
  CHECK(RuntimeDirectory::open(path));
}

TEST_CASE("runtime directory: one that others may enter is refused with its mode", "[unit][os]") {
  const Scratch scratch;
  for (const mode_t mode : {0701, 0710, 0720, 0755, 0777}) {
    REQUIRE(::chmod(scratch.path.c_str(), mode) == 0);
    CHECK(contains(refusal(scratch.path), "0700"));
  }
  REQUIRE(::chmod(scratch.path.c_str(), 0700) == 0);
  CHECK(RuntimeDirectory::open(scratch.path));
}

TEST_CASE("runtime directory: links, files and relative paths are refused", "[unit][os]") {
  const Scratch scratch;
  const std::string real = scratch.path + "/real", link = scratch.path + "/link";
  REQUIRE(RuntimeDirectory::open(real));
  std::filesystem::create_directory_symlink(real, link);
  CHECK(contains(refusal(link), "symbolic link"));
  std::ofstream(scratch.path + "/file") << "text";
  CHECK(contains(refusal(scratch.path + "/file"), "not a directory"));
  CHECK(contains(refusal("somewhere"), "must start with /"));
}

TEST_CASE("runtime directory: another user's is refused", "[unit][os]") {
  const Scratch scratch;
  if (::geteuid() != 0) return;  // Only root can give a directory away.
  REQUIRE(::chown(scratch.path.c_str(), 12345, 12345) == 0);
  CHECK(contains(refusal(scratch.path), "belongs to uid 12345"));
}

TEST_CASE("lock file: it has one holder, and is free when that is gone", "[unit][os]") {
  const Scratch scratch;
  const std::string path = scratch.path + "/lock";
  {
    const auto first = LockFile::acquire(path);
    REQUIRE(first);
    const auto second = LockFile::acquire(path);
    REQUIRE_FALSE(second);
    CHECK(second.error().code() == Errc::unavailable);
  }
  CHECK(LockFile::acquire(path));
}

TEST_CASE("lock file: its holder knows when another file stands in its place", "[unit][os]") {
  const Scratch scratch;
  const std::string path = scratch.path + "/lock";
  const auto lock = LockFile::acquire(path);
  REQUIRE(lock);
  CHECK(lock->is_at(path));
  REQUIRE(std::filesystem::remove(path));
  CHECK_FALSE(lock->is_at(path));
  const auto other = LockFile::acquire(path);
  REQUIRE(other);
  CHECK(other->is_at(path));
  CHECK_FALSE(lock->is_at(path));
}

TEST_CASE("lock file: a look whether it is held disturbs nobody", "[unit][os]") {
  const Scratch scratch;
  const std::string path = scratch.path + "/lock";
  CHECK_FALSE(LockFile::is_held(path));
  CHECK_FALSE(std::filesystem::exists(path));
  {
    const auto lock = LockFile::acquire(path);
    REQUIRE(lock);
    CHECK(LockFile::is_held(path));
  }
  CHECK_FALSE(LockFile::is_held(path));
  CHECK(LockFile::acquire(path));
}

}  // namespace ckpt::os
