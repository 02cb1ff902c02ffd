// RuntimeDirectory: the private place where a user's daemon and his trainers meet.
//
// It is 0700 and the user's own, and holds the socket, the lock that makes the daemon the only one,
// the ready-file and the log. Who controls the directory controls the daemon, so it is checked each
// time, and refused rather than repaired.
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
  // The same, but makes nothing: for those who only look. Errors: and not_found.
  static Result<RuntimeDirectory> find(const std::string& given);

  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/ckptd.sock"; }
  std::string lock() const { return path_ + "/ckptd.lock"; }
  // Held by whoever starts a daemon, so that many trainers start only one.
  std::string start_lock() const { return path_ + "/ckptd.start.lock"; }
  std::string ready() const { return path_ + "/ckptd.json"; }
  std::string log() const { return path_ + "/ckptd.log"; }

 private:
  explicit RuntimeDirectory(std::string path) : path_(std::move(path)) {}
  static Result<RuntimeDirectory> look_at(std::string path);
  std::string path_;
};

// LockFile: a lock that its process holds for life, and that the kernel frees when it dies.
class LockFile {
 public:
  // Errors: unavailable (held by another process, or removed at that moment), io.
  static Result<LockFile> acquire(const std::string& path);
  // Somebody holds it now. For those who only look: makes no file.
  static bool is_held(const std::string& path);
  // False: it was removed, or another file stands there. Whoever locks that one does not meet us.
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
