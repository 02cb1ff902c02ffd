// Goal:   a library that is missing, or too old, is an answer that says why.
// Method: the C library's mathematics, which every machine has, and names that none has.
#include "os/dynamic_library.hpp"

#include <catch2/catch.hpp>

namespace ckpt::test {
namespace {

TEST_CASE("dynamic library: the first name that loads is used", "[unit][os]") {
  const auto library = os::DynamicLibrary::open({"libckpt-nothing.so.9", "libm.so.6"});
  REQUIRE(library);
  CHECK(library->name() == "libm.so.6");
  const auto cosine = library->symbol<double(double)>("cos");
  REQUIRE(cosine);
  CHECK((*cosine)(0.0) == 1.0);
  double (*sine)(double) = nullptr;
  REQUIRE(library->find("sin", sine));
  CHECK(sine(0.0) == 0.0);
  CHECK_FALSE(library->find("ckpt_no_such_function", sine));
}

TEST_CASE("dynamic library: a missing one is named", "[unit][os]") {
  const auto none = os::DynamicLibrary::open({"libckpt-nothing.so.9", "libckpt-nothing.so"});
  REQUIRE(!none);
  CHECK(none.error().code() == Errc::not_found);
  CHECK(none.error().text().find("libckpt-nothing.so.9") != std::string::npos);
  CHECK(!os::DynamicLibrary::open({}));
  const auto library = os::DynamicLibrary::open({"libm.so.6"});
  REQUIRE(library);
  const auto symbol = library->symbol<void()>("ckpt_no_such_function");
  REQUIRE(!symbol);
  CHECK(symbol.error().code() == Errc::unsupported);
  CHECK(symbol.error().text().find("ckpt_no_such_function") != std::string::npos);
}

TEST_CASE("dynamic library: only what is loaded already is found as loaded", "[unit][os]") {
  const auto present = os::DynamicLibrary::loaded("libc.so.6");
  REQUIRE(present);
  CHECK(present->symbol<int()>("getpid"));
  const auto absent = os::DynamicLibrary::loaded("libckpt-nothing.so.9");
  REQUIRE(!absent);
  CHECK(absent.error().code() == Errc::not_found);
  // The loader knows it, and nobody in this process has asked for it.
  CHECK(!os::DynamicLibrary::loaded("libanl.so.1"));
}

}  // namespace
}  // namespace ckpt::test
