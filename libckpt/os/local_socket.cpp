#include "os/local_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/readiness.hpp"

namespace ckpt::os {

namespace {

constexpr int backlog = 64;  // Ranks of one node that may connect at one instant.
constexpr std::chrono::milliseconds retry_pause(5);

// A socket's address through its open directory, so that long paths work too.
struct SocketPlace {
  Fd directory;
  std::string path;
  std::string name;
};

Result<SocketPlace> open_place(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  SocketPlace place;
  place.path = path;
  place.name = slash == std::string::npos ? path : path.substr(slash + 1);
  place.directory = Fd(::open(directory.empty() ? "/" : directory.c_str(),
                              O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (place.directory) return place;
  if (errno == ENOENT) return fail(Errc::not_found, "open the directory " + directory);
  if (errno == ENOTDIR || errno == ELOOP) {
    return fail(Errc::invalid_argument,
                "open the directory " + directory + ": it is a symbolic link, or no directory");
  }
  return fail_system("open the directory " + directory);
}

// Anyone who may write to the directory could replace our socket with his own.
Status check_ours_alone(const SocketPlace& place) {
  struct stat status{};
  if (::fstat(place.directory.number(), &status) != 0) {
    return fail_system("look at the directory of " + place.path);
  }
  if (status.st_uid != ::geteuid()) {
    return fail(Errc::invalid_argument,
                fmt::format("use the directory of {}: it belongs to user {}, we are {}", place.path,
                            status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & 077) != 0) {
    return fail(Errc::invalid_argument,
                fmt::format("use the directory of {}: others may enter it (mode {:o}); it must "
                            "have mode 700",
                            place.path, status.st_mode & 0777));
  }
  return {};
}

Result<sockaddr_un> address_of(const SocketPlace& place) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = place.path;
  if (path.size() >= sizeof address.sun_path) {
    path = fmt::format("/proc/self/fd/{}/{}", place.directory.number(), place.name);
  }
  if (path.size() >= sizeof address.sun_path || place.name.empty()) {
    return fail(Errc::invalid_argument, "use the socket path " + place.path + ": too long a name");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<Fd> open_socket(const std::string& path) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_system("open a socket for " + path);
  return socket;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Succeeds if nothing remains at that place. Removes only a socket without a listener.
Status remove_stale(const SocketPlace& place, const sockaddr_un& address) {
  struct stat status{};
  if (::fstatat(place.directory.number(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return fail_system("look at " + place.path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return fail(Errc::invalid_argument, "listen on " + place.path +
                                            ": a file that is no socket "
                                            "stands there");
  }
  CKPT_TRY(const Fd probe, open_socket(place.path));
  // Only a refusal proves that nobody listens: a full backlog returns EAGAIN.
  if (::connect(probe.number(), generic(address), sizeof address) == 0 || errno != ECONNREFUSED) {
    return fail(Errc::unavailable, "listen on " + place.path + ": another process does");
  }
  if (::unlinkat(place.directory.number(), place.name.c_str(), 0) != 0 && errno != ENOENT) {
    return fail_system("remove the stale socket " + place.path);
  }
  log_info("removed the stale socket {}", place.path);
  return {};
}

}  // namespace

class LocalListener::State {
 public:
  State(Clock& clock, std::shared_ptr<Readiness> socket, SocketPlace place)
      : clock_(clock), socket_(std::move(socket)), place_(std::move(place)) {
    is_ours_ =
        ::fstatat(place_.directory.number(), place_.name.c_str(), &made_, AT_SYMLINK_NOFOLLOW) == 0;
  }

  void close() {
    socket_->close();
    struct stat found{};
    const int directory = place_.directory.number();
    if (!is_ours_ || ::fstatat(directory, place_.name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
      return;
    }
    is_ours_ = false;
    // Another daemon may have put its own socket there meanwhile.
    if (found.st_ino != made_.st_ino || found.st_dev != made_.st_dev) return;
    ::unlinkat(directory, place_.name.c_str(), 0);
  }

  // Checks through the path, since the directory may have been replaced too.
  bool is_reachable() const {
    struct stat found{};
    return is_ours_ && ::lstat(place_.path.c_str(), &found) == 0 && found.st_ino == made_.st_ino &&
           found.st_dev == made_.st_dev;
  }

  static Task<LocalConnection> accept(std::shared_ptr<State> self, Time deadline);

 private:
  Clock& clock_;
  std::shared_ptr<Readiness> socket_;
  SocketPlace place_;
  struct stat made_{};
  bool is_ours_ = false;
};

Task<LocalConnection> LocalListener::State::accept(std::shared_ptr<State> self, Time deadline) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  while (self->socket_->is_open()) {
    Fd fd(::accept4(self->socket_->number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) {
        CKPT_CO_CHECK(co_await Readiness::wait(self->socket_, Readiness::readable, deadline));
      } else if (error != EINTR && error != ECONNABORTED) {
        co_return fail_system("accept a connection on " + self->place_.path,
                              std::error_code(error, std::generic_category()));
      }
      continue;
    }
    CKPT_CO_TRY(LocalConnection connection,
                LocalConnection::adopt(executor, self->clock_, std::move(fd)));
    if (connection.peer().uid == ::geteuid()) co_return std::move(connection);
    log_warning("{}: refused process {} of user {}", self->place_.path, connection.peer().pid,
                connection.peer().uid);
  }
  co_return fail(Errc::cancelled, "accept a connection on " + self->place_.path + ": closed by us");
}

Result<LocalListener> LocalListener::open(const asio::any_io_executor& executor, Clock& clock,
                                          const std::string& path) {
  CKPT_TRY(SocketPlace place, open_place(path));
  CKPT_CHECK(check_ours_alone(place));
  CKPT_TRY(const sockaddr_un address, address_of(place));
  CKPT_CHECK(remove_stale(place, address));
  CKPT_TRY(Fd socket, open_socket(path));
  if (::bind(socket.number(), generic(address), sizeof address) != 0) {
    if (errno == EADDRINUSE) {
      return fail(Errc::unavailable, "listen on " + path + ": another process does");
    }
    return fail_system("make the socket " + path);
  }
  // The directory already keeps others out. The mode does so too, whatever the umask is.
  if (::fchmodat(place.directory.number(), place.name.c_str(), 0600, 0) != 0 ||
      ::listen(socket.number(), backlog) != 0) {
    return fail_system("listen on " + path);
  }
  CKPT_TRY(auto readiness, Readiness::open(executor, clock, std::move(socket)));
  return LocalListener(std::make_shared<State>(clock, std::move(readiness), std::move(place)));
}

LocalListener::LocalListener(std::shared_ptr<State> state) : state_(std::move(state)) {}

LocalListener::~LocalListener() {
  close();
}

Task<LocalConnection> LocalListener::accept(Time deadline) {
  CKPT_ASSERT(state_ != nullptr);
  return State::accept(state_, deadline);
}

bool LocalListener::is_reachable() const {
  return state_ != nullptr && state_->is_reachable();
}

void LocalListener::close() {
  if (state_ != nullptr) state_->close();
}

Task<LocalConnection> connect_local(Clock& clock, std::string path, Time deadline) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  CKPT_CO_TRY(const SocketPlace place, open_place(path));
  CKPT_CO_TRY(const sockaddr_un address, address_of(place));
  CKPT_CO_TRY(Fd socket, open_socket(path));
  while (::connect(socket.number(), generic(address), sizeof address) != 0) {
    const int error = errno;
    const std::error_code cause(error, std::generic_category());
    const std::string attempted = "connect to " + path;
    if (error == ENOENT) co_return fail(Errc::not_found, attempted, cause);
    if (error == ECONNREFUSED) co_return fail(Errc::unavailable, attempted, cause);
    if (error != EAGAIN && error != EINTR) co_return fail_system(attempted, cause);
    // The backlog is full, and a local socket sends no notification when it has room again.
    if (clock.now() >= deadline) co_return fail(Errc::unavailable, attempted, cause);
    const Time next = std::min(deadline, clock.after(retry_pause));
    CKPT_CO_CHECK(co_await sleep_until(clock, next));
  }
  CKPT_CO_TRY(LocalConnection connection,
              LocalConnection::adopt(executor, clock, std::move(socket)));
  if (connection.peer().uid == ::geteuid()) co_return std::move(connection);
  co_return fail(Errc::invalid_argument,
                 fmt::format("connect to {}: it belongs to user {}", path, connection.peer().uid));
}

}  // namespace ckpt::os
