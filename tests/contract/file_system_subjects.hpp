// FileSystemSubjects: the implementations of FileSystem that the contracts hold for, by name.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "contract/file_system_contract.hpp"
#include "os/pool_file_system.hpp"
#include "os/ring_file_system.hpp"
#include "support/memory_file_system.hpp"

namespace ckpt::test {

class OnDisk final : public FileSystemUnderTest {
 public:
  // `parent` is on a file system of the machine.
  OnDisk(const std::string& parent, std::unique_ptr<os::FileSystem> files)
      : files_(std::move(files)) {
    std::string pattern = parent + "/libckpt-contract-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
  }
  ~OnDisk() override {
    files_.reset();
    std::filesystem::remove_all(directory_);
  }
  os::FileSystem& files() override { return *files_; }
  std::string directory() const override { return directory_; }
  void make_link(const std::string& path, const std::string& target) override {
    REQUIRE(::symlink(target.c_str(), path.c_str()) == 0);
  }
  asio::io_context& context() override { return context_; }
  bool must_clone() const override { return !sharing_disk().empty() && is_below(sharing_disk()); }
  // On a file system whose files can share bytes; empty: the crash suite has made none.
  static std::string sharing_disk() {
    const char* const given = std::getenv("CKPT_SHARING_DISK");
    return given == nullptr ? "" : given;
  }

 private:
  bool is_below(const std::string& parent) const { return directory_.starts_with(parent + "/"); }

  asio::io_context context_;
  std::unique_ptr<os::FileSystem> files_;
  std::string directory_;
};

class InMemory final : public FileSystemUnderTest {
 public:
  explicit InMemory(bool is_direct) : files_(disk_) {
    disk_.set_direct(is_direct);
    disk_.put_directory("/run");
  }
  os::FileSystem& files() override { return files_; }
  std::string directory() const override { return "/run"; }
  void make_link(const std::string& path, const std::string& target) override {
    disk_.put_link(path, target);
  }
  asio::io_context& context() override { return context_; }
  bool must_clone() const override { return true; }

 private:
  asio::io_context context_;
  MemoryDisk disk_;
  MemoryFileSystem files_;
};

using FileSystemSubject = std::unique_ptr<FileSystemUnderTest>;

// Null where this machine does not have it.
inline FileSystemSubject make_file_system_subject(const std::string& name) {
  std::string disk = std::filesystem::temp_directory_path();
  if (name.ends_with("that shares")) {
    disk = OnDisk::sharing_disk();
    if (disk.empty()) return nullptr;
  }
  if (name == "memory") return std::make_unique<InMemory>(false);
  if (name.starts_with("pool")) return std::make_unique<OnDisk>(disk, os::make_pool_file_system());
  auto ring = os::make_ring_file_system();
  if (!ring) {
    WARN("no io_uring here: " + ring.error().message());
    return nullptr;
  }
  if (name != "ring on tmpfs") return std::make_unique<OnDisk>(disk, std::move(ring).value());
  if (!std::filesystem::exists("/dev/shm")) return nullptr;
  return std::make_unique<OnDisk>("/dev/shm", std::move(ring).value());
}

}  // namespace ckpt::test
