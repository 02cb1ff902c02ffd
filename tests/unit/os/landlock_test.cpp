// Goal:   a process that restricts its changes can change nothing elsewhere, though it is root, and
//         in the named places it can do all that publishing and deleting steps takes.
// Method: forked children restrict themselves and try each system call. What they leave is compared
//         by the parent, which stays free. Mounts come and go in a namespace of the child's own.
#include "os/landlock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "support/in_child.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::os {
namespace {

using What = MayChange::What;

bool is_left_out() {
  if (landlock_version() >= landlock_version_wanted) return false;
  WARN("left out: this kernel has no Landlock of version 2");
  return true;
}

void put(const std::string& path) {
  std::ofstream(path) << "as it was";
}

// Two trees alike: below `in` files may change, below `out` none.
struct Trees {
  Trees() {
    for (const char* tree : {"in", "out"}) {
      for (const char* name : {"", "/a", "/b", "/empty"})
        std::filesystem::create_directory(path(tree) + name);
      for (const char* name : {"/a/file", "/a/other", "/b/file"}) put(path(tree) + name);
    }
  }
  std::string path(const std::string& name) const { return directory.file(name); }
  // Each path below, with the size of a file.
  std::string listing(const std::string& tree) const {
    std::string text;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(tree)))
      text += fmt::format("{} {}\n", entry.path().string(),
                          entry.is_regular_file() ? entry.file_size() : 0);
    return text;
  }
  Status restrict(int version = landlock_version()) const {
    const MayChange places[] = {{What::tree, path("in")}};
    return restrict_changes(places, version);
  }
  test::TemporaryDirectory directory;
};

int error_of(int result) {
  const int error = result < 0 ? errno : 0;
  if (result > 2) ::close(result);
  return error;
}

int write_over(const std::string& path) {
  return error_of(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
}
int make_file(const std::string& path) {
  return error_of(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}
int rename_it(const std::string& from, const std::string& to, unsigned flags = 0) {
  return error_of(::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}
int make_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int error =
      error_of(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
  ::close(socket);
  return error;
}

// All that a daemon does at its places. Returns the names of the calls with another outcome.
struct Attempt {
  std::string text;
  void expect(const char* call, int error, std::initializer_list<int> wanted) {
    if (std::find(wanted.begin(), wanted.end(), error) != wanted.end()) return;
    text += fmt::format("{}: {}; ", call, error == 0 ? "done" : std::strerror(error));
  }
};

std::string change_all(const std::string& tree, const std::string& elsewhere,
                       std::initializer_list<int> wanted) {
  Attempt attempt;
  attempt.expect("write", write_over(tree + "/a/file"), wanted);
  attempt.expect("make", make_file(tree + "/a/new"), wanted);
  attempt.expect("make directory", error_of(::mkdir((tree + "/dir").c_str(), 0700)), wanted);
  attempt.expect("rename", rename_it(tree + "/a/file", tree + "/a/renamed"), wanted);
  attempt.expect("publish", rename_it(tree + "/a", tree + "/b/a", RENAME_NOREPLACE), wanted);
  const std::string moved = wanted.begin()[0] == 0 ? tree + "/b/a" : tree + "/a";
  attempt.expect("exchange", rename_it(moved, tree + "/empty", RENAME_EXCHANGE), wanted);
  attempt.expect("remove", error_of(::unlink((tree + "/b/file").c_str())), wanted);
  attempt.expect("remove directory", error_of(::rmdir(moved.c_str())), wanted);
  attempt.expect("listen", make_socket(tree + "/socket"), wanted);
  // Never, wherever it is: the daemon does not need these.
  attempt.expect("link", error_of(::symlink("/", (tree + "/link").c_str())), {EACCES});
  attempt.expect("pipe", error_of(::mkfifo((tree + "/pipe").c_str(), 0600)), {EACCES});
  attempt.expect("device", error_of(::mknod((tree + "/null").c_str(), S_IFCHR, makedev(1, 3))),
                 {EACCES, EPERM});
  // EXDEV: it has no right to move files between the two.
  attempt.expect("take out", rename_it(tree + "/empty", elsewhere + "/taken"), {EACCES, EXDEV});
  attempt.expect("bring in", rename_it(elsewhere + "/b/file", tree + "/brought"), {EACCES, EXDEV});
  attempt.expect("name anew",
                 error_of(::link((elsewhere + "/b/file").c_str(), (tree + "/n").c_str())),
                 {EACCES, EXDEV});
  return attempt.text;
}

}  // namespace

TEST_CASE("landlock: outside of the named places nothing changes, though the process is root",
          "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees;
  const std::string before = trees.listing("out");
  CHECK(test::in_child([&] {
          if (const Status status = trees.restrict(); !status) return status.error().message();
          std::string text = change_all(trees.path("out"), trees.path("in"), {EACCES});
          char byte = 0;
          std::ifstream(trees.path("out/a/file")).get(byte);
          return byte == 'a' ? text : text + "not readable";
        }) == "");
  CHECK(trees.listing("out") == before);
  put(trees.path("out/a/file"));  // We are free as before.
}

TEST_CASE("landlock: in a named place steps are written, published and removed", "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees;
  const std::string before = trees.listing("out");
  CHECK(test::in_child([&] {
          if (const Status status = trees.restrict(); !status) return status.error().message();
          return change_all(trees.path("in"), trees.path("out"), {0});
        }) == "");
  CHECK(std::filesystem::exists(trees.path("in/empty/renamed")));  // Published, then exchanged.
  CHECK(std::filesystem::exists(trees.path("in/dir")));
  CHECK_FALSE(std::filesystem::exists(trees.path("in/b/a")));
  CHECK(trees.listing("out") == before);
}

TEST_CASE("landlock: it holds for threads that start later, and for programs", "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees;
  CHECK(test::in_child([&] {
          if (const Status status = trees.restrict(); !status) return status.error().message();
          int error = 0;
          std::thread([&] { error = make_file(trees.path("out/new")); }).join();
          const int code = std::system(("rm " + trees.path("out/b/file") + " 2>&-").c_str());
          return error == EACCES && code != 0 ? std::string() : "done";
        }) == "");
  CHECK(std::filesystem::exists(trees.path("out/b/file")));
}

TEST_CASE("landlock: a cut of a file that is not open takes version 3, all else version 2",
          "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees;
  const int version = GENERATE(2, 3);
  if (landlock_version() < version) return;
  CHECK(test::in_child([&] {
          if (const Status status = trees.restrict(version); !status)
            return status.error().message();
          Attempt attempt;
          attempt.expect("cut", error_of(::truncate(trees.path("out/b/file").c_str(), 1)),
                         {version < 3 ? 0 : EACCES});
          attempt.expect("cut inside", error_of(::truncate(trees.path("in/b/file").c_str(), 1)),
                         {0});
          attempt.expect("write", write_over(trees.path("out/a/file")), {EACCES});
          return attempt.text;
        }) == "");
}

TEST_CASE("landlock: an old kernel, or a place that is not there, restricts nothing",
          "[unit][os]") {
  const Trees trees;
  for (const int version : {0, 1}) {
    const Status status = trees.restrict(version);
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == Errc::unsupported);
  }
  CHECK_THAT(trees.restrict(0).error().text(), Catch::Contains("no Landlock"));
  CHECK_THAT(trees.restrict(1).error().text(), Catch::Contains("version 1"));
  const MayChange missing[] = {{What::tree, trees.path("missing")}};
  const MayChange file[] = {{What::files, trees.path("out/a/file")}};
  if (is_left_out()) return;
  CHECK_THAT(restrict_changes(missing).error().text(), Catch::Contains(trees.path("missing")));
  CHECK_FALSE(restrict_changes(file));
  CHECK(make_file(trees.path("out/new")) == 0);
}

TEST_CASE("landlock: a place of files has no directories, and a file only its content",
          "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees;
  CHECK(test::in_child([&] {
          int pipe[2] = {-1, -1};
          if (::pipe(pipe) != 0) return std::string("no pipe");
          const MayChange places[] = {{What::files, trees.path("in")},
                                      {What::content, trees.path("out/a/file")},
                                      {What::content, fmt::format("/proc/self/fd/{}", pipe[1])}};
          if (const Status status = restrict_changes(places); !status)
            return status.error().message();
          Attempt attempt;
          attempt.expect("make", make_file(trees.path("in/new")), {0});
          attempt.expect("replace", rename_it(trees.path("in/new"), trees.path("in/newer")), {0});
          attempt.expect("listen", make_socket(trees.path("in/socket")), {0});
          attempt.expect("remove", error_of(::unlink(trees.path("in/a/file").c_str())), {0});
          attempt.expect("make directory", error_of(::mkdir(trees.path("in/d").c_str(), 0700)),
                         {EACCES});
          attempt.expect("remove directory", error_of(::rmdir(trees.path("in/empty").c_str())),
                         {EACCES});
          attempt.expect("write", write_over(trees.path("out/a/file")), {0});
          attempt.expect("write beside", write_over(trees.path("out/a/other")), {EACCES});
          attempt.expect("remove it", error_of(::unlink(trees.path("out/a/file").c_str())),
                         {EACCES});
          attempt.expect("rename it",
                         rename_it(trees.path("out/a/file"), trees.path("out/a/moved")), {EACCES});
          return attempt.text;
        }) == "");
}

namespace {

// Lets a restricted child try once more; returns its error.
int try_again(int commands, int answers) {
  int error = -1;
  if (::write(commands, "g", 1) != 1) return error;
  return ::read(answers, &error, sizeof error) == sizeof error ? error : -1;
}

int mount_fresh(const std::string& path) {
  return error_of(::mount("test", path.c_str(), "tmpfs", 0, "size=64k"));
}

// `path` is a mount point. A restricted child makes files there; between two of them, it is
// unmounted and mounted again. Returns the errors: mounted, unmounted, mounted again.
std::string remount_under(const std::string& path, const std::string& named) {
  if (::unshare(CLONE_NEWNS) != 0) return "left out";
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "left out";
  if (mount_fresh(path) != 0) return "left out";
  std::array<int, 2> commands{}, answers{};
  if (::pipe(commands.data()) != 0 || ::pipe(answers.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(commands[1]);
    const MayChange places[] = {{What::tree, named}};
    if (!restrict_changes(places)) std::_Exit(1);
    char command = 0;
    for (int turn = 0; ::read(commands[0], &command, 1) == 1; ++turn) {
      const int error = make_file(fmt::format("{}/file-{}", path, turn));
      if (::write(answers[1], &error, sizeof error) != sizeof error) std::_Exit(1);
    }
    std::_Exit(0);
  }
  ::close(answers[1]);
  std::vector<int> errors{try_again(commands[1], answers[0])};
  if (::umount(path.c_str()) != 0) return "not unmounted";
  errors.push_back(try_again(commands[1], answers[0]));
  if (mount_fresh(path) != 0) return "not mounted again";
  errors.push_back(try_again(commands[1], answers[0]));
  ::close(commands[1]);
  ::waitpid(child, nullptr, 0);
  return fmt::format("{}", fmt::join(errors, " "));
}

}  // namespace

TEST_CASE("landlock: a mount below a named place comes and goes, and a named one must stay",
          "[unit][os]") {
  if (is_left_out()) return;
  const Trees trees, others;
  const std::string above =
      test::in_child([&] { return remount_under(trees.path("in/empty"), trees.path("in")); });
  if (above == "left out") {
    WARN("left out: only root may mount");
    return;
  }
  CHECK(above == "0 0 0");
  // The directory below the mount point is another one, and so is what is mounted again.
  CHECK(test::in_child([&] { return remount_under(others.path("in"), others.path("in")); }) ==
        fmt::format("0 {} {}", EACCES, EACCES));
}

}  // namespace ckpt::os
