// Goal:   the daemon is found beside the program or the library, wherever they were installed, or
//         by the PATH of a copy of the environment.
// Method: ask for our own program and for a library whose place is known; then for programs in
//         directories of the test.
#include "os/program_path.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.hpp"

namespace ckpt::os {

TEST_CASE("program path: programs and libraries know where they lie", "[unit][os]") {
  CHECK(std::filesystem::read_symlink("/proc/self/exe").parent_path() == program_directory());
  const auto directory = library_directory(reinterpret_cast<const void*>(&::getpid));
  CHECK(std::filesystem::exists(directory + "/libc.so.6"));
  CHECK(library_directory(nullptr).empty());
}

TEST_CASE("program path: a name is the first program in PATH that may be run", "[unit][os]") {
  const test::TemporaryDirectory directory;
  for (const char* name : {"plain", "folder", "one", "two"})
    std::filesystem::create_directory(directory.file(name));
  std::filesystem::create_directory(directory.file("folder/tool"));
  for (const char* name : {"plain/tool", "one/tool", "two/tool"})
    std::ofstream(directory.file(name)) << "#!/bin/sh\n";
  for (const char* name : {"one/tool", "two/tool"})
    std::filesystem::permissions(directory.file(name), std::filesystem::perms::owner_all);
  const auto found = [](const std::string& program, const std::string& path) {
    EnvironmentCopy environment;
    environment.set("PATH", path);
    const auto at = find_program(program, environment);
    return at ? *at : std::string(to_string(at.error().code()));
  };
  // A file without the right to run it, and a directory, are passed over.
  const std::string path = directory.file("none") + ':' + directory.file("plain") + ':' +
                           directory.file("folder") + ':' + directory.file("one") + ':' +
                           directory.file("two");
  CHECK(found("tool", path) == directory.file("one/tool"));
  CHECK(found("tool", directory.file("plain")) == to_string(Errc::not_found));
  CHECK(found("tool", "") == to_string(Errc::not_found));
  CHECK(found(directory.file("two/tool"), path) == directory.file("two/tool"));
  CHECK(found("./tool", path) == "./tool");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.file("two"));
  CHECK(found("tool", directory.file("none") + "::" + directory.file("one")) == "./tool");
  std::filesystem::current_path(before);
  // As the C library has it.
  CHECK(find_program("sh", EnvironmentCopy()).has_value());
}

}  // namespace ckpt::os
