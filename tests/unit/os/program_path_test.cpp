// Goal:   the daemon is found beside the program or the library, wherever they were installed.
// Method: ask for our own program and for a library whose place is known.
#include "os/program_path.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

namespace ckpt::os {

TEST_CASE("program path: programs and libraries know where they lie", "[unit][os]") {
  CHECK(std::filesystem::read_symlink("/proc/self/exe").parent_path() == program_directory());
  const auto directory = library_directory(reinterpret_cast<const void*>(&::getpid));
  CHECK(std::filesystem::exists(directory + "/libc.so.6"));
  CHECK(library_directory(nullptr).empty());
}

}  // namespace ckpt::os
