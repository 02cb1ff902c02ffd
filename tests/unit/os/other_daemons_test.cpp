// Goal:   a daemon of this user in another runtime directory is found, and nothing else.
// Method: a directory with the files that the kernel shows of processes.
#include "os/other_daemons.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.hpp"

namespace ckpt::os {

namespace {

struct Processes {
  void add(const std::string& name, const std::string& comm, const std::string& command,
           const std::string& environment = "") const {
    std::filesystem::create_directory(directory.file(name));
    std::ofstream(directory.file(name + "/comm")) << comm << '\n';
    write(name + "/cmdline", command);
    write(name + "/environ", environment);
  }
  void write(const std::string& name, std::string texts) const {
    std::ranges::replace(texts, ' ', '\0');
    std::ofstream(directory.file(name)) << texts << '\0';
  }
  test::TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("other daemons: those in other directories are found, by flag or environment",
          "[unit][os]") {
  const Processes processes;
  processes.add("12", "ckptd-ctl", "ckptd --runtime-dir /run/a/ --nice 3",
                "LIBCKPT_RUNTIME_DIR=/b");
  processes.add("7", "ckptd", "ckptd --runtime-dir=/run/b");
  processes.add("30", "ckptd-ctl", "ckptd --nice 3", "HOME=/root LIBCKPT_RUNTIME_DIR=/run/c X=1");
  processes.add("31", "ckptd-ctl", "ckptd --runtime-dir");
  processes.add("8", "ckptd-ctl", "ckptd --runtime-dir /run/ours");
  processes.add("9", "python", "python --runtime-dir /run/d");
  processes.add("self", "ckptd-ctl", "ckptd --runtime-dir /run/e");
  processes.add("10x", "ckptd-ctl", "ckptd --runtime-dir /run/f");
  CHECK(other_daemons("/run/ours", processes.directory.path()) ==
        std::vector<OtherDaemon>{{7, "/run/b"}, {12, "/run/a"}, {30, "/run/c"}, {31, ""}});
  CHECK(other_daemons("/run/ours", processes.directory.file("none")).empty());
}

}  // namespace ckpt::os
