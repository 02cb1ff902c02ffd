#include "os/thread_settings.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <string>

#include "os/fd.hpp"

namespace ckpt::os {

namespace {

// Writes a value such as "/autogroup-7 nice 0". Leaves sessions that are already lower, and kernels
// without groups, as they are.
Status lower_session(int nice) {
  const Fd file(::open("/proc/self/autogroup", O_RDWR | O_CLOEXEC));
  std::array<char, 64> before{};
  if (!file.is_open() || ::read(file.number(), before.data(), before.size() - 1) <= 0) return {};
  int nice_now = 0;
  if (std::sscanf(before.data(), "/autogroup-%*d nice %d", &nice_now) != 1) return {};
  if (nice_now >= nice) return {};
  const std::string text = std::to_string(nice);
  if (::write(file.number(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    return {};
  return fail_system("give the session the nice " + text);
}

}  // namespace

void set_thread_name(std::string_view name) {
  const std::string cut(name.substr(0, 15));
  (void)::pthread_setname_np(::pthread_self(), cut.c_str());
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Status give_way(int nice) {
  const auto thread = static_cast<id_t>(::gettid());
  if (::getpriority(PRIO_PROCESS, thread) < nice &&
      ::setpriority(PRIO_PROCESS, thread, nice) != 0) {
    return fail_system("give the thread the nice " + std::to_string(nice));
  }
  return ::getsid(0) == ::getpid() ? lower_session(nice) : Status();
}

}  // namespace ckpt::os
