// Goal:   a process's threads run on the cores that were asked for, those that they start later
// too,
//         and who was bound is bound no more when all cores are asked for.
// Method: children bind themselves and tell what they and their threads then have. With one core
//         the same holds of that one.
#include "os/cores.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <thread>

namespace ckpt::test {
namespace {

// In a process of its own, whose cores are nobody else's matter; exit code 0 says that it holds.
bool holds_in_a_child(const std::function<bool()>& claim) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(claim() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

os::CoreSet first_of(const os::CoreSet& cores) {
  os::CoreSet first;
  first.set(cores._Find_first());
  return first;
}

}  // namespace

TEST_CASE("cores: all threads are bound, and those that they start", "[unit][os]") {
  const bool holds = holds_in_a_child([] {
    const auto first = first_of(os::cores_of(0).value());
    std::promise<void> bound;
    os::CoreSet older, younger;
    std::thread thread([&, is_bound = bound.get_future()] {
      is_bound.wait();
      older = os::cores_of(0).value();
      std::thread([&] { younger = os::cores_of(0).value(); }).join();
    });
    const bool is_done = os::bind_threads(first).has_value();
    bound.set_value();
    thread.join();
    return is_done && os::cores_of(::getpid()).value() == first && older == first &&
           younger == first;
  });
  CHECK(holds);
}

TEST_CASE("cores: a bound thread gets back all that the kernel lets it have", "[unit][os]") {
  const bool holds = holds_in_a_child([] {
    if (!os::use_all_cores()) return false;
    const auto all = os::cores_of(0).value();
    if (!os::bind_threads(first_of(all))) return false;
    return os::use_all_cores().has_value() && os::cores_of(0).value() == all;
  });
  CHECK(holds);
}

TEST_CASE("cores: none at all is refused, and nothing changes", "[unit][os]") {
  const bool holds = holds_in_a_child([] {
    const auto before = os::cores_of(0).value();
    const auto refused = os::bind_threads(os::CoreSet());
    return !refused && refused.error().code() == Errc::io && os::cores_of(0).value() == before;
  });
  CHECK(holds);
}

TEST_CASE("cores: a process that has ended has none", "[unit][os]") {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(os::cores_of(child).error().code() == Errc::not_found);
}

TEST_CASE("cores: their text is the kernel's", "[unit][os]") {
  os::CoreSet cores;
  CHECK(os::to_text(cores).empty());
  for (const std::size_t core : {0u, 1u, 2u, 3u, 8u, 8190u, 8191u}) cores.set(core);
  CHECK(os::to_text(cores) == "0-3,8,8190-8191");
}

}  // namespace ckpt::test
