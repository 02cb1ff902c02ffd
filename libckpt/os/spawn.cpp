#include "os/spawn.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "os/process.hpp"
#include "os/program_path.hpp"

namespace ckpt::os {

namespace {

// The pointers that the system call wants; `strings` must outlive them.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// posix_spawn's two descriptions of the child, freed on every way out. Their functions fail only
// for lack of memory.
class SpawnPlan {
 public:
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int prepare(int log_fd) {
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    constexpr short flags = POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    for (const int error : {
             ::posix_spawnattr_setflags(&attributes, flags),
             ::posix_spawnattr_setsigmask(&attributes, &none),
             ::posix_spawnattr_setsigdefault(&attributes, &all),
             ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0),
             ::posix_spawn_file_actions_adddup2(&actions, log_fd, STDOUT_FILENO),
             ::posix_spawn_file_actions_adddup2(&actions, log_fd, STDERR_FILENO),
             ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1),
         }) {
      if (error != 0) return error;
    }
    return 0;
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// Opens it above the three standard descriptors, which the child overwrites.
Result<Fd> open_log(const std::string& path) {
  const Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600));
  if (!log) return fail_system("open the log file " + path);
  Fd above(::fcntl(log.number(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!above) return fail_system("open the log file " + path);
  return above;
}

}  // namespace

Result<Spawned> spawn_detached(const SpawnOptions& options) {
  CKPT_TRY(const Fd log, open_log(options.log_path));
  CKPT_TRY(const std::string program, find_program(options.program, options.environment));
  std::vector<std::string> arguments = {options.program};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = options.environment.entries();
  std::vector<char*> argument_pointers = pointers_to(arguments);
  std::vector<char*> environment_pointers = pointers_to(environment);
  SpawnPlan plan;
  pid_t pid = 0;
  int error = plan.prepare(log.number());
  if (error == 0) {
    error = ::posix_spawn(&pid, program.c_str(), &plan.actions, &plan.attributes,
                          argument_pointers.data(), environment_pointers.data());
  }
  if (error != 0) {
    const std::error_code cause(error, std::generic_category());
    const std::string attempted = "start " + options.program;
    if (error == ENOENT || error == EACCES) return fail(Errc::not_found, attempted, cause);
    return fail_system(attempted, cause);
  }
  // It is our unreaped child: the number cannot have been reused.
  CKPT_TRY(Fd process, open_process(pid));
  return Spawned{std::move(process), pid};
}

}  // namespace ckpt::os
