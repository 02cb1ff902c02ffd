// Goal:   every descriptor is closed exactly once, by its owner.
// Method: count the open descriptors around moves, duplicates and releases.
#include "os/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "support/descriptors.hpp"

namespace ckpt::test {
namespace {

os::Fd open_null() {
  return os::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

TEST_CASE("fd: an owner closes its descriptor, once", "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    os::Fd first = open_null();
    REQUIRE(first.is_open());
    CHECK(open_descriptors() == before + 1);
    os::Fd second(std::move(first));
    CHECK(second.is_open());
    os::Fd third = open_null();
    third = std::move(second);  // Closes what it had.
    CHECK(open_descriptors() == before + 1);
    os::Fd& same = third;
    third = std::move(same);
    CHECK(third.is_open());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("fd: a released one stays open", "[unit][os]") {
  const std::size_t before = open_descriptors();
  int number = -1;
  {
    os::Fd fd = open_null();
    number = fd.release();
    CHECK(!fd.is_open());
  }
  CHECK(open_descriptors() == before + 1);
  ::close(number);
}

TEST_CASE("fd: a duplicate lives on its own and is closed on exec", "[unit][os]") {
  os::Fd fd = open_null();
  auto copy = fd.dup();
  REQUIRE(copy);
  fd.reset();
  const int flags = ::fcntl(copy->number(), F_GETFD);
  REQUIRE(flags >= 0);
  CHECK((flags & FD_CLOEXEC) != 0);
  CHECK(!os::Fd().dup());
}

TEST_CASE("fd: a failed call's result is no descriptor, and closing keeps its cause",
          "[unit][os]") {
  CHECK(!os::Fd(-1));
  CHECK(os::Fd(-22).number() == -1);
  {
    const os::Fd closed = open_null();
    errno = ENOSPC;
  }
  CHECK(errno == ENOSPC);
}

TEST_CASE("fd: a met limit is exhausted, all else is io", "[unit][os]") {
  const auto cause = [](int number) { return std::error_code(number, std::generic_category()); };
  for (const int limit : {EMFILE, ENFILE, ENOMEM, ENOSPC}) {
    CHECK(os::fail_system("open", cause(limit)).error().code() == Errc::exhausted);
  }
  const Error error = os::fail_system("open /x", cause(EACCES)).error();
  CHECK(error.code() == Errc::io);
  CHECK(error.message() == "i/o: open /x (Permission denied)");
}

}  // namespace
}  // namespace ckpt::test
