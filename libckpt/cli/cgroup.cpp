#include "cli/cgroup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

namespace ckpt::cli {

namespace {

constexpr const char* service_advice =
    "to keep it, start ckptd as a service of its own before the trainers: they find it there";
constexpr const char* linger_advice =
    "to keep it, `systemd-run --user --unit=ckptd ckptd` before the trainers, once `loginctl "
    "enable-linger` allows this user's services to outlive the sessions";
constexpr const char* slurm_advice =
    "to keep it for later steps of the job, start ckptd in a step that outlives the trainers': "
    "`srun --overlap --ntasks-per-node=1 ckptd &` in the batch script";
constexpr const char* container_advice =
    "trainers that are started again in this container find it; in another one peers or storage "
    "serve them";

// A hierarchy's path, and its parts.
struct Group {
  std::string path;
  std::vector<std::string> parts;
  bool is_of_systemd = false;
};

// Each line is "number:controllers:path"; version 2 has number 0 and no controllers.
std::vector<Group> groups_in(std::string_view text) {
  std::vector<Group> groups;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos || !line.substr(second + 1).starts_with('/')) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    Group group;
    group.path = line.substr(second + 1);
    for (const auto& part : std::filesystem::path(group.path).relative_path())
      if (!part.empty()) group.parts.push_back(part);
    group.is_of_systemd = controllers.empty() || controllers == "name=systemd";
    if (!group.parts.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

// The text between `prefix` and `suffix` in the first part that begins with `prefix`.
std::optional<std::string> named(const Group& group, std::string_view prefix,
                                 std::string_view suffix = "") {
  for (const std::string& part : group.parts) {
    const bool is_it = part.starts_with(prefix) && part.ends_with(suffix) &&
                       part.size() > prefix.size() + suffix.size();
    if (is_it) return part.substr(prefix.size(), part.size() - prefix.size() - suffix.size());
  }
  return std::nullopt;
}

std::optional<Cgroup> slurm(const Group& group) {
  if (group.path.find("slurm") == std::string::npos) return std::nullopt;
  const auto job = named(group, "job_");
  if (!job) return std::nullopt;
  const auto step = named(group, "step_");
  const std::string which = step ? fmt::format("step {} of ", *step) : std::string();
  return Cgroup{group.path, fmt::format("{}Slurm job {}", which, *job), slurm_advice};
}

std::optional<Cgroup> container(const Group& group) {
  constexpr std::array<std::string_view, 9> marks = {
      "kubepods", "docker",        "libpod", "lxc",       "cri-containerd",
      "crio",     "machine.slice", "garden", "containerd"};
  const bool is_one = std::ranges::any_of(group.parts, [&](const std::string& part) {
    // A container runtime's own daemon, such as docker.service, is an ordinary service.
    return !part.ends_with(".service") && std::ranges::any_of(marks, [&](std::string_view mark) {
      return part.starts_with(mark);
    });
  });
  if (!is_one) return std::nullopt;
  return Cgroup{group.path, "its container", container_advice};
}

Cgroup unit(const Group& group) {
  const std::string& leaf = group.parts.back();
  if (const auto user = named(group, "user@", ".service"))
    return {group.path, fmt::format("the last session of user {}, unless it lingers", *user),
            linger_advice};
  if (leaf.starts_with("ckptd") && leaf.ends_with(".service")) return {group.path, "", ""};
  if (const auto session = named(group, "session-", ".scope"))
    return {group.path,
            fmt::format("login session {}, where logind has KillUserProcesses=yes", *session),
            linger_advice};
  if (leaf.ends_with(".service"))
    return {group.path, fmt::format("the service {}, when that is stopped", leaf), service_advice};
  return {group.path, "its cgroup, when somebody ends that", service_advice};
}

}  // namespace

Cgroup parse_cgroup(std::string_view text, bool is_in_container) {
  const std::vector<Group> groups = groups_in(text);
  for (const auto find : {slurm, container}) {
    for (const Group& group : groups)
      if (auto found = find(group)) return std::move(*found);
  }
  // Supervisors end processes through systemd's hierarchy; others only count and limit.
  auto chosen = std::ranges::find_if(groups, &Group::is_of_systemd);
  if (chosen == groups.end()) chosen = groups.begin();
  const std::string path = groups.empty() ? "/" : chosen->path;
  if (is_in_container) return {path, "its container", container_advice};
  return groups.empty() ? Cgroup{path, "", ""} : unit(*chosen);
}

bool is_in_container(const std::string& pid) {
  // On every kernel, the first namespace of process numbers has this one.
  constexpr const char* first_namespace = "pid:[4026531836]";
  std::error_code error;
  const auto its = std::filesystem::read_symlink("/proc/" + pid + "/ns/pid", error);
  return !error && its != first_namespace;
}

}  // namespace ckpt::cli
