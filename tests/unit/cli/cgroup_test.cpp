// Goal:   the owner of a daemon reads which supervisor ends it, by its usual name.
// Method: contents of /proc/PID/cgroup as launchers, service managers and containers make them, of
//         both versions.
#include "cli/cgroup.hpp"

#include <catch2/catch.hpp>

namespace ckpt::cli {

TEST_CASE("cgroup: the supervisor of a daemon is named", "[unit][cli]") {
  struct Sample {
    const char* text;
    const char* path;
    const char* dies_with;
  };
  const Sample samples[] = {
      {"0::/\n", "/", ""},
      {"", "/", ""},
      {"no such line\n3:cpu\n0::relative\n", "/", ""},
      {"0::/system.slice/ckptd.service\n", "/system.slice/ckptd.service", ""},
      {"0::/system.slice/train.service\n", "/system.slice/train.service",
       "the service train.service, when that is stopped"},
      {"0::/user.slice/user-1000.slice/session-3.scope\n",
       "/user.slice/user-1000.slice/session-3.scope",
       "login session 3, where logind has KillUserProcesses=yes"},
      {"0::/user.slice/user-7.slice/user@7.service/app.slice/ckptd.service\n",
       "/user.slice/user-7.slice/user@7.service/app.slice/ckptd.service",
       "the last session of user 7, unless it lingers"},
      {"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_1\n",
       "/system.slice/slurmstepd.scope/job_123/step_0/user/task_1", "step 0 of Slurm job 123"},
      {"9:name=systemd:/system.slice/slurmd.service\n"
       "8:pids:/\n"
       "4:memory:/slurm/uid_1000/job_7/step_batch/task_0\n"
       "0::/\n",
       "/slurm/uid_1000/job_7/step_batch/task_0", "step batch of Slurm job 7"},
      {"4:memory:/slurm/uid_1000/job_7\n", "/slurm/uid_1000/job_7", "Slurm job 7"},
      {"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-0a1b.scope\n",
       "/kubepods.slice/kubepods-burstable.slice/cri-containerd-0a1b.scope", "its container"},
      {"3:cpu:/\n2:name=systemd:/docker/0a1b\n", "/docker/0a1b", "its container"},
      {"0::/system.slice/docker-0a1b.scope\n", "/system.slice/docker-0a1b.scope", "its container"},
      {"0::/system.slice/containerd.service\n", "/system.slice/containerd.service",
       "the service containerd.service, when that is stopped"},
      {"4:memory:/batch/job.5\n3:cpu:/\n0::/\n", "/batch/job.5",
       "its cgroup, when somebody ends that"},
  };
  for (const Sample& sample : samples) {
    const Cgroup found = parse_cgroup(sample.text, false);
    INFO(sample.text);
    CHECK(found.path == sample.path);
    CHECK(found.dies_with == sample.dies_with);
    CHECK(found.advice.empty() == found.dies_with.empty());
  }
}

TEST_CASE("cgroup: a container ends what it hides the groups of", "[unit][cli]") {
  CHECK(parse_cgroup("0::/\n", true).dies_with == "its container");
  CHECK(parse_cgroup("0::/system.slice/ckptd.service\n", true).dies_with == "its container");
  CHECK(parse_cgroup("0::/job_7/step_0\n", true).dies_with == "its container");
  CHECK(parse_cgroup("0::/slurm/job_7/step_0\n", true).dies_with == "step 0 of Slurm job 7");
  CHECK_FALSE(is_in_container("no process"));
}

}  // namespace ckpt::cli
