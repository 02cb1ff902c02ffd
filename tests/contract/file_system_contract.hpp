// FileSystemContract: the duties of every FileSystem, on any disk.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "os/file_system.hpp"

namespace ckpt::test {

// One implementation, ready to be tested in an empty directory of its own.
class FileSystemUnderTest {
 public:
  virtual ~FileSystemUnderTest() = default;
  virtual os::FileSystem& files() = 0;
  virtual std::string directory() const = 0;  // Exists and is empty.
  virtual void make_link(const std::string& path, const std::string& target) = 0;
  virtual asio::io_context& context() = 0;
  virtual bool must_clone() const { return false; }  // Files certainly can share bytes there.
};

void check_whole_spans(FileSystemUnderTest& subject);
void check_reading_past_the_end(FileSystemUnderTest& subject);
void check_creation_is_exclusive(FileSystemUnderTest& subject);
void check_renames(FileSystemUnderTest& subject);
void check_directories(FileSystemUnderTest& subject);
void check_small_files(FileSystemUnderTest& subject);
void check_identity(FileSystemUnderTest& subject);
void check_clones(FileSystemUnderTest& subject);
void check_clones_of_others(FileSystemUnderTest& subject);
void check_links_are_refused(FileSystemUnderTest& subject);
void check_many_in_flight(FileSystemUnderTest& subject);

}  // namespace ckpt::test
