// Goal:   a small file is read whole or refused, whatever its name turns out to be.
// Method: files, links, a directory, a FIFO and a device under names of a temporary directory.
#include "os/small_file.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.hpp"

namespace ckpt::os {

TEST_CASE("small file: replaced whole, read with a limit", "[unit][os]") {
  const test::TemporaryDirectory scratch;
  const std::string path = scratch.file("ready");
  CHECK(read_file(path, 10).error().code() == Errc::not_found);
  REQUIRE(replace_file(path, "first\nsecond\n"));
  REQUIRE(replace_file(path, "one\ntwo\n\n"));
  CHECK(read_file(path, 9).value() == "one\ntwo\n\n");
  CHECK(read_file(path, 8).error().code() == Errc::exhausted);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);
  std::filesystem::create_symlink(path, scratch.file("link"));
  CHECK(read_file(scratch.file("link"), 9).value() == "one\ntwo\n\n");
  remove_file(path);
  CHECK(read_file(scratch.file("link"), 9).error().code() == Errc::not_found);
}

TEST_CASE("small file: anything but a regular file is refused, and holds nobody up", "[unit][os]") {
  const test::TemporaryDirectory scratch;
  const std::string fifo = scratch.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const auto directory = read_file(scratch.path(), 10);
  REQUIRE_FALSE(directory);
  CHECK(directory.error().code() == Errc::invalid_argument);
  CHECK(directory.error().text() == "read " + scratch.path().string() + ": it is a directory");
  for (const std::string& path : {fifo, std::string("/dev/zero")}) {
    const auto read = read_file(path, 10);
    REQUIRE_FALSE(read);
    CHECK(read.error().code() == Errc::invalid_argument);
    CHECK(read.error().text() == "read " + path + ": it is no regular file");
  }
}

TEST_CASE("small file: the last line is that of what was added", "[unit][os]") {
  const test::TemporaryDirectory scratch;
  const std::string path = scratch.file("log");
  CHECK(last_line(path).empty());
  CHECK(file_bytes(path) == 0);
  REQUIRE(replace_file(path, "one\ntwo\n\n"));
  const auto before = file_bytes(path);
  CHECK(before == 9);
  CHECK(last_line(path) == "two");
  CHECK(last_line(path, before).empty());
  std::ofstream(path, std::ios::app) << "three\n";
  CHECK(last_line(path, before) == "three");
  REQUIRE(replace_file(path, "new\n"));  // As a log that was rotated.
  CHECK(last_line(path, before) == "new");
}

}  // namespace ckpt::os
