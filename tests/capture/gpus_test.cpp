// Goal:   what a machine does not have is said in words that help; what is not a GPU's memory is
//         refused; memory is pinned in pieces, and a refusal costs a copy and nothing else.
// Method: stand-ins of several versions and limits, one where only containers have it, and no
// driver
//         at all.
#include "device/gpus.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "capture/capture_world.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/in_child.hpp"

namespace ckpt::test {

using Catch::Contains;

namespace {

std::string refusal() {
  auto gpus = device::Gpus::open({}, std::make_shared<device::MemoryPins>());
  if (gpus) return "";
  REQUIRE(gpus.error().code() == Errc::unsupported);
  return gpus.error().text();
}

}  // namespace

TEST_CASE("gpus: a machine without driver, or without GPU, gets an error", "[unit][device]") {
  (void)stand_in();
  const char* const driver = std::getenv("CKPT_CUDA_DRIVER");
  REQUIRE(driver != nullptr);
  const std::string ours = driver;
  ::setenv("CKPT_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
  const std::string absent = refusal();
  ::setenv("CKPT_CUDA_DRIVER", ours.c_str(), 1);
  REQUIRE_THAT(absent, Contains("no NVIDIA driver where CKPT_CUDA_DRIVER says"));
  REQUIRE(stand_in().reset("devices=0"));
  REQUIRE_THAT(refusal(), Contains("no GPU can be used"));
  REQUIRE(stand_in().reset("version=11020"));
  REQUIRE_THAT(refusal(), Contains("CUDA 11.2") && Contains("CUDA 11.3 is the oldest"));
  REQUIRE_FALSE(device::describe_gpus());
}

TEST_CASE("gpus: they are described without a context", "[unit][device]") {
  REQUIRE(stand_in().reset("devices=1 version=12080"));
  REQUIRE(device::describe_gpus().value() == "CUDA 12.8, 1 GPU: stand-in 0");
  REQUIRE(stand_in().reset("devices=2"));
  REQUIRE_THAT(device::describe_gpus().value(), Contains("2 GPUs: stand-in 0, stand-in 1"));
}

namespace {

// For this process alone, /usr/local has the stand-in where containers mount the host's driver.
bool mount_driver() {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("driver", "/usr/local", "tmpfs", 0, nullptr) == 0 &&
         ::mkdir("/usr/local/nvidia", 0755) == 0 && ::mkdir("/usr/local/nvidia/lib64", 0755) == 0 &&
         ::symlink(std::getenv("CKPT_CUDA_DRIVER"), "/usr/local/nvidia/lib64/libcuda.so.1") == 0;
}

}  // namespace

TEST_CASE("gpus: the driver is found where containers have it", "[unit][device]") {
  REQUIRE(stand_in().reset("devices=3"));
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    WARN("not tried: this machine has a driver where the loader looks");
    return;
  }
  const std::string said = in_child([] {
    const std::string driver = std::getenv("CKPT_CUDA_DRIVER");
    if (driver.starts_with("/usr/local/") || !mount_driver()) return std::string("not allowed");
    ::unsetenv("CKPT_CUDA_DRIVER");
    const auto gpus = device::Gpus::open({}, std::make_shared<device::MemoryPins>());
    return gpus ? fmt::format("{} GPUs", (*gpus)->count()) : gpus.error().text();
  });
  if (said == "not allowed") {
    WARN("not tried: no file system can be mounted here");
    return;
  }
  REQUIRE(said == "3 GPUs");
}

TEST_CASE("gpus: errors that only a new process cures are told apart", "[unit][device]") {
  const StandInTrainer trainer("");
  for (const int code : {226, 700, 702, 709, 710, 714, 716, 719, 810, 214, 46, 100}) {
    INFO("error " << code);
    const Status lost = trainer.driver().check(static_cast<CUresult>(code), "copy");
    REQUIRE(lost.error().code() == Errc::unavailable);
    REQUIRE_THAT(lost.error().text(), Contains("only a new process gets another"));
  }
  for (const int code : {1, 2, 400, 600, 712, 800, 900, 999}) {
    INFO("error " << code);
    const Status refused = trainer.driver().check(static_cast<CUresult>(code), "copy");
    REQUIRE(refused.error().code() == Errc::io);
    REQUIRE_THAT(refused.error().text(), Contains("copy: ") && Contains(fmt::format("({})", code)));
  }
  REQUIRE(trainer.driver().check(CUDA_SUCCESS, "copy"));
}

TEST_CASE("gpus: small tensors go together where the driver can", "[unit][device]") {
  for (const auto& [version, is_together] : {std::pair{11040, false},
                                             {12000, false},
                                             {12080, true},
                                             {12090, true},
                                             {13000, true},
                                             {13010, true}}) {
    WorldOptions options;
    options.words = fmt::format("version={}", version);
    CaptureWorld world(options);
    INFO("version " << version << world.first_error());
    REQUIRE(world.run(3));
    REQUIRE(world.good() == 3);
    REQUIRE((stand_in().counts().batches > 0) == is_together);
  }
}

TEST_CASE("gpus: a GPU that takes no batches has its small tensors copied one by one",
          "[unit][device]") {
  WorldOptions options;
  options.words = "refuses_batches=1";
  CaptureWorld world(options);
  INFO(world.first_error());
  REQUIRE(world.run(3));
  REQUIRE(world.good() == 3);
  REQUIRE(stand_in().counts().batches == 0);
}

TEST_CASE("gpus: memory that is not the GPU's is refused", "[unit][device]") {
  StandInTrainer trainer("devices=2");
  auto pins = std::make_shared<device::MemoryPins>();
  auto gpus = device::Gpus::open({}, pins).value();
  REQUIRE(gpus->count() == 2);
  std::byte* const here = trainer.allocate(100);
  int on_the_host = 0;
  REQUIRE(gpus->device_of(here, 0));
  const auto elsewhere = gpus->device_of(here, 1);
  REQUIRE_THAT(elsewhere.error().text(), Contains("lies on GPU 0, but GPU 1 was given"));
  void* pinned = nullptr;
  REQUIRE(trainer.driver().allocate_host(&pinned, 16, 0) == CUDA_SUCCESS);
  for (const void* host :
       {static_cast<const void*>(&on_the_host), const_cast<const void*>(pinned)}) {
    const auto refused = gpus->device_of(host, 0);
    REQUIRE_THAT(refused.error().text(), Contains("is no memory of GPU 0"));
  }
  REQUIRE(trainer.driver().free_host(pinned) == CUDA_SUCCESS);
  for (const int index : {-1, 2}) {
    const auto none = gpus->device_of(here, index);
    REQUIRE(none.error().code() == Errc::invalid_argument);
    REQUIRE_THAT(none.error().text(), Contains(fmt::format("no GPU {}", index)));
  }
}

TEST_CASE("gpus: memory that cannot be pinned is captured through the ring", "[unit][device]") {
  // Room for the ring, and not for a Slot.
  WorldOptions options;
  options.words = "pin_call_max=4096";
  CaptureWorld world(options);
  REQUIRE(world.run(4));
  REQUIRE(world.good() == 4);
  REQUIRE(stand_in().counts().pageable_copies == 0);
}

TEST_CASE("gpus: where not even the ring can be pinned, the capture fails and says so",
          "[unit][device]") {
  WorldOptions options;
  options.words = "pin_total_max=4096";
  CaptureWorld world(options);
  REQUIRE(world.run(2));
  REQUIRE(world.failed() == 2);
  REQUIRE_THAT(world.first_error(), Contains("is not pinned, and neither can"));
}

}  // namespace ckpt::test
