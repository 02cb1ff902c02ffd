#include "bench/daemons.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/must.hpp"

namespace bench {

namespace {

constexpr std::chrono::seconds patience(20);
constexpr std::chrono::milliseconds pause(20);

std::string program(const char* name) {
  return std::filesystem::path(own_path()).replace_filename(name).string();
}

Process start_in(const std::string& runtime_dir, Command command) {
  std::filesystem::remove_all(runtime_dir);
  std::filesystem::create_directories(runtime_dir);
  std::filesystem::permissions(runtime_dir, std::filesystem::perms::owner_all);
  command.insert(command.end(), {program("ckptd"), "--runtime-dir", runtime_dir});
  return Process::start(command);
}

pid_t wait_until_ready(const std::string& runtime_dir) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    std::ifstream file(runtime_dir + "/ckptd.json");
    const auto ready = nlohmann::json::parse(file, nullptr, false);
    if (ready.is_object() && ready.contains("pid")) return ready["pid"].get<pid_t>();
    std::this_thread::sleep_for(pause);
  }
  give_up("ckptd did not start; see " + runtime_dir + "/ckptd.log");
}

}  // namespace

Daemon::Daemon(std::string runtime_dir, const Command& start_with)
    : runtime_dir_(std::move(runtime_dir)),
      process_(start_in(runtime_dir_, start_with)),
      pid_(wait_until_ready(runtime_dir_)) {}

Daemon::~Daemon() {
  process_.kill(SIGKILL);
  process_.wait();
  std::filesystem::remove_all(runtime_dir_);
}

void Daemon::drop(const std::string& job) const {
  const Command command = {program("ckpt"), "drop", job, "--runtime-dir", runtime_dir_, "--json"};
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!succeeds(command)) {
    if (std::chrono::steady_clock::now() > until) give_up("ckpt drop " + job + " is refused");
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace bench
