#include "os/cores.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <system_error>

#include "os/fd.hpp"

namespace ckpt::os {

namespace {

// Passes over the list of threads, since a thread that is not bound yet may start another. The
// daemon's threads start others at most two deep.
constexpr int passes_max = 16;
constexpr const char* own_threads = "/proc/self/task";

// The kernel's form of a set, with room for more cores than cpu_set_t.
class Mask {
 public:
  Mask() : mask_(CPU_ALLOC(cores_max)) {
    if (mask_ != nullptr) CPU_ZERO_S(bytes(), mask_.get());
  }
  explicit Mask(const CoreSet& cores) : Mask() {
    for (std::size_t core = 0; mask_ != nullptr && core < cores_max; ++core) {
      if (cores.test(core)) CPU_SET_S(core, bytes(), mask_.get());
    }
  }
  CoreSet cores() const {
    CoreSet cores;
    for (std::size_t core = 0; mask_ != nullptr && core < cores_max; ++core)
      cores.set(core, CPU_ISSET_S(core, bytes(), mask_.get()) != 0);
    return cores;
  }
  static std::size_t bytes() { return CPU_ALLOC_SIZE(cores_max); }
  cpu_set_t* get() const { return mask_.get(); }

 private:
  struct Free {
    void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
  };
  std::unique_ptr<cpu_set_t, Free> mask_;
};

int bind(pid_t thread, const Mask& mask) {
  return ::sched_setaffinity(thread, Mask::bytes(), mask.get());
}

// Returns true if a thread had other cores, or may have started one that has.
Result<bool> bind_those_that_are_not(const CoreSet& cores) {
  const Mask mask(cores);
  bool was_any = false;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(own_threads, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    const auto found = cores_of(thread);
    if (found && *found == cores) continue;
    if (!found && found.error().code() != Errc::not_found) return fail(Error(found.error()));
    if (found && bind(thread, mask) != 0 && errno == EINVAL) {
      // A worker of io_uring: older kernels refuse to bind it.
      continue;
    }
    was_any = true;
  }
  if (error) return fail(Errc::io, fmt::format("list the threads in {}", own_threads), error);
  return was_any;
}

}  // namespace

Result<CoreSet> cores_of(pid_t thread) {
  const Mask mask;
  if (::sched_getaffinity(thread, Mask::bytes(), mask.get()) == 0) return mask.cores();
  const std::error_code cause = last_system_error();
  std::string attempted = fmt::format("read the cores of thread {}", thread);
  if (cause.value() == ESRCH) return fail(Errc::not_found, std::move(attempted), cause);
  return fail_system(std::move(attempted), cause);
}

Status use_all_cores() {
  const Mask all(CoreSet().set());
  if (bind(0, all) == 0) return {};
  return fail_system("use all cores");
}

Status bind_threads(const CoreSet& cores) {
  if (bind(0, Mask(cores)) != 0)
    return fail_system(fmt::format("use the cores {}", to_text(cores)));
  CKPT_TRY(const CoreSet allowed, cores_of(0));
  for (int pass = 0; pass < passes_max; ++pass) {
    CKPT_TRY(const bool was_any, bind_those_that_are_not(allowed));
    if (!was_any) return {};
  }
  return fail(Errc::unavailable, fmt::format("use the cores {} in all threads", to_text(cores)));
}

std::string to_text(const CoreSet& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores_max; ++first) {
    if (!cores.test(first)) continue;
    std::size_t last = first;
    while (last + 1 < cores_max && cores.test(last + 1)) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    first = last;
  }
  return text;
}

}  // namespace ckpt::os
