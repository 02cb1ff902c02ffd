// Goal:   what we believe about the machine is what it says itself.
// Method: compare with /proc and with what a process can find out in another way.
#include "os/machine.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "base/units.hpp"

namespace ckpt::os {

TEST_CASE("machine: available memory is some, and not more than there is", "[unit][os]") {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  const auto available = available_memory_bytes();
  CHECK(available > MiB);
  CHECK(available <= pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}

TEST_CASE("machine: the limit of descriptors becomes the hard one", "[unit][os]") {
  const auto raised = raise_descriptor_limit();
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(limit.rlim_cur == limit.rlim_max);
  CHECK(raised == limit.rlim_cur);
}

TEST_CASE("machine: a thread carries its name", "[unit][os]") {
  std::string before(16, '\0');
  std::ifstream("/proc/thread-self/comm") >> before;
  name_this_thread("ckpt-test");
  std::string name;
  std::ifstream("/proc/thread-self/comm") >> name;
  CHECK(name == "ckpt-test");
  name_this_thread(before.c_str());
}

TEST_CASE("machine: programs and libraries know where they lie", "[unit][os]") {
  CHECK(program_directory().front() == '/');
  CHECK(library_directory(reinterpret_cast<const void*>(&::getpid)).front() == '/');
  CHECK_FALSE(host_name().empty());
}

}  // namespace ckpt::os
