// Goal:   a labelled point does exactly what the environment asks, at the hit that it names.
// Method: run this very program again, with the environment set, in a hidden test case that passes
//         the point five times and says how far it came.
#include "base/kill_point.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/kill_point_rules.hpp"
#include "base/random.hpp"

namespace ckpt::test {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Child {
  Child() { std::filesystem::create_directory(directory); }
  ~Child() { std::filesystem::remove_all(directory); }

  pid_t start(const std::string& points) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv("LIBCKPT_POINTS", points.c_str(), 1);
    ::setenv("LIBCKPT_POINTS_LOG", (directory / "log").c_str(), 1);
    ::setenv("LIBCKPT_POINTS_RELEASE", (directory / "release").c_str(), 1);
    ::setenv("CKPT_TEST_PROGRESS", (directory / "progress").c_str(), 1);
    ::close(STDERR_FILENO);
    ::close(STDOUT_FILENO);
    ::execl("/proc/self/exe", "unit_base", "kill point child", nullptr);
    std::_Exit(127);
  }
  static int status_of(pid_t child, int options = 0) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, options) == child);
    return status;
  }
  std::string progress() const { return text_of(directory / "progress"); }
  std::string log() const { return text_of(directory / "log"); }

  std::filesystem::path directory = std::filesystem::temp_directory_path() /
                                    ("ckpt-point-test-" + std::to_string(random_from_system()));
};

TEST_CASE("kill point child", "[.][kill_point_child]") {
  std::signal(SIGABRT, SIG_DFL);
  for (int i = 1; i <= 5; ++i) {
    CKPT_POINT("test.point");
    std::ofstream(std::getenv("CKPT_TEST_PROGRESS"), std::ios::app) << i;
  }
  CKPT_POINT("test.end");
}

TEST_CASE("kill point: kill strikes at the hit that is named", "[unit][base]") {
  const Child child;
  const int status = Child::status_of(child.start("test.point=kill@3"));
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(child.progress() == "12");
  CHECK(child.log() == "test.point\n");
}

TEST_CASE("kill point: every label is recorded once, also one that no rule names", "[unit][base]") {
  const Child child;
  const int status = Child::status_of(child.start("test.point=log"));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(child.progress() == "12345");
  CHECK(child.log() == "test.point\ntest.end\n");
}

TEST_CASE("kill point: stop halts the process until it is continued", "[unit][base]") {
  const Child child;
  const pid_t pid = child.start("test.point=stop@2");
  CHECK(WIFSTOPPED(Child::status_of(pid, WUNTRACED)));
  CHECK(child.progress() == "1");
  ::kill(pid, SIGCONT);
  CHECK(WIFEXITED(Child::status_of(pid)));
  CHECK(child.progress() == "12345");
}

TEST_CASE("kill point: pause waits for the release file", "[unit][base]") {
  const Child child;
  std::ofstream(child.directory / "release") << "go";
  CHECK(WIFEXITED(Child::status_of(child.start("test.point=pause;test.end=log"))));
  CHECK(child.progress() == "12345");
}

TEST_CASE("kill point: abort aborts", "[unit][base]") {
  const Child child;
  const int status = Child::status_of(child.start("test.end=abort"));
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(child.progress() == "12345");
}

TEST_CASE("kill point: a rule that cannot be read stops the program at its start", "[unit][base]") {
  const Child child;
  const int status = Child::status_of(child.start("test.point=explode"));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(child.progress().empty());
}

TEST_CASE("kill point: rules are parsed, and what is wrong is named", "[unit][base]") {
  const auto rules = detail::parse_point_rules("a.b=kill@3;;c=log;d=stop;e=pause;f=abort@12");
  REQUIRE(rules);
  REQUIRE(rules->size() == 5);
  CHECK((*rules)[0].label == "a.b");
  CHECK((*rules)[0].action == detail::PointAction::kill);
  CHECK((*rules)[0].at_hit == 3);
  CHECK((*rules)[4].at_hit == 12);
  CHECK(detail::parse_point_rules("")->empty());
  for (const char* wrong : {"a", "=kill", "a=", "a=kill@", "a=kill@0", "a=kill@x", "a=kill@1x",
                            "a=kill@99999999999", "ok=log;b=nonsense"}) {
    INFO(wrong);
    const auto refused = detail::parse_point_rules(wrong);
    REQUIRE(!refused);
    CHECK(refused.error().code() == Errc::invalid_argument);
  }
}

}  // namespace
}  // namespace ckpt::test
