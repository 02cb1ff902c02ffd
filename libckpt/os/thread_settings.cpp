#include "os/thread_settings.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "os/fd.hpp"

namespace ckpt::os {

namespace {
// Of linux/ioprio.h, which not every set of headers has.
constexpr int ioprio_who_process = 1;
constexpr int ioprio_class_idle = 3;
constexpr int ioprio_class_shift = 13;
constexpr int nice_lowest = 19;
}  // namespace

void set_thread_name(std::string_view name) {
  const std::string cut(name.substr(0, 15));
  (void)::pthread_setname_np(::pthread_self(), cut.c_str());
}

Status make_thread_idle() {
  // Both calls mean the calling thread where they are given a thread's number, as Linux does it.
  const pid_t thread = ::gettid();
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice_lowest) != 0) {
    return fail_system("give the thread the lowest nice");
  }
  if (::syscall(SYS_ioprio_set, ioprio_who_process, thread,
                ioprio_class_idle << ioprio_class_shift) != 0) {
    return fail_system("put the thread into the idle class of the disk");
  }
  return {};
}

}  // namespace ckpt::os
