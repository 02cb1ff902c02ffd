// DaemonPlace: the runtime directory of one test, and the real daemon in it, which ends with it.
#pragma once

#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>

#include "client/session_link.hpp"
#include "os/process.hpp"
#include "os/small_file.hpp"
#include "support/program_path.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::client {

struct DaemonPlace {
  DaemonPlace() {
    options.job = "test";
    options.runtime_dir = directory.file("run");
    options.daemon_path = test::program_path("ckptd");
    options.memory_budget = 64 << 20;
    options.replicas = 1;
  }
  ~DaemonPlace() { kill_daemon(); }

  pid_t daemon() const {
    const auto text = os::read_file(options.runtime_dir + "/ckptd.json", 4096);
    return text ? nlohmann::json::parse(*text)["pid"].get<pid_t>() : 0;
  }
  void kill_daemon() const {
    const pid_t pid = daemon();
    if (pid == 0) return;
    const auto process = os::open_process(pid);
    if (process) (void)os::kill_process(*process, SIGKILL);
  }
  std::string log() const {
    return os::read_file(options.runtime_dir + "/ckptd.log", 1 << 20).value();
  }

  test::TemporaryDirectory directory;
  Options options;
};

}  // namespace ckpt::client
