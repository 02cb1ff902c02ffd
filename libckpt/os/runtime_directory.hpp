// RuntimeDirectory: the private directory where a user's daemon and trainers meet.
//
// It has mode 0700, belongs to the user, and holds the socket, the lock that allows only one
// daemon, the ready-file and the log. Control over the directory is control over the daemon, so it
// is checked each time, and refused rather than repaired.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "os/fd.hpp"

namespace ckpt::os {

class RuntimeDirectory {
 public:
  // `given`, else LIBCKPT_RUNTIME_DIR, else XDG_RUNTIME_DIR/libckpt, else /run/user/UID/libckpt
  // where that user directory exists, else /tmp/libckpt-UID. Created if missing.
  // Errors: invalid_argument (a link, no directory, somebody else's, open to others), io.
  static Result<RuntimeDirectory> open(const std::string& given);
  // Like open(), but creates nothing, for callers that only look. Errors: as open(), and not_found.
  static Result<RuntimeDirectory> find(const std::string& given);

  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/ckptd.sock"; }
  std::string lock() const { return path_ + "/ckptd.lock"; }
  // Locked while starting a daemon, so that many trainers start only one.
  std::string start_lock() const { return path_ + "/ckptd.start.lock"; }
  std::string ready() const { return path_ + "/ckptd.json"; }
  std::string log() const { return path_ + "/ckptd.log"; }

 private:
  explicit RuntimeDirectory(std::string path) : path_(std::move(path)) {}
  static Result<RuntimeDirectory> look_at(std::string path);
  std::string path_;
};

// LockFile: a lock that its process keeps for life, and that the kernel releases when it dies.
class LockFile {
 public:
  // Errors: unavailable (held by another process, or removed at that moment), io.
  static Result<LockFile> acquire(const std::string& path);
  // True while some process holds it. Creates no file.
  static bool is_held(const std::string& path);
  // False: the file was removed or replaced. A process that locks the new one does not exclude us.
  bool is_at(const std::string& path) const;

  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&& other) noexcept;
  ~LockFile() { unlock(); }

 private:
  void unlock();
  explicit LockFile(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace ckpt::os
