// ckptd: options, then the daemon. Exit codes: 0 ended as asked, 1 trouble, 2 wrong use.
#include <cstdio>

#include "daemon/daemon.hpp"

namespace {

int complain(const ckpt::Error& error) {
  std::fprintf(stderr, "ckptd: %s\n", error.message().c_str());
  return error.code() == ckpt::Errc::invalid_argument ? 2 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  auto parsed = ckpt::daemon::parse_arguments(count, arguments);
  if (parsed.must_exit) {
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  auto daemon = ckpt::daemon::Daemon::open(std::move(parsed.options));
  if (!daemon) return complain(daemon.error());
  const ckpt::Status status = (*daemon)->run();
  return status ? 0 : complain(status.error());
}
