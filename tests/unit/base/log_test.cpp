// Goal:   a line of the log is whole, has the documented form, and costs its caller nothing but
//         itself; the files stay within their limit.
// Method: a sink that collects; a small rotating file; threads that write at once.
#include "base/log.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace ckpt::test {
namespace {

std::vector<std::string>& collected() {
  static std::vector<std::string> lines;
  return lines;
}

struct Collecting {
  Collecting() {
    collected().clear();
    Log::set_sink([](LogLevel, std::string_view line) { collected().emplace_back(line); });
  }
  ~Collecting() {
    Log::set_sink(nullptr);
    Log::set_level(LogLevel::info);
  }
};

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("log: a line has time, level, program and text", "[unit][base]") {
  const Collecting collecting;
  Log::set_program("ckptd");
  log_info("job={} step={} sealed", "gpt2", 900);
  REQUIRE(collected().size() == 1);
  CHECK(std::regex_match(
      collected()[0],
      std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info ckptd job=gpt2 step=900 sealed)")));
}

TEST_CASE("log: levels below the least one are not written", "[unit][base]") {
  const Collecting collecting;
  Log::set_level(LogLevel::warning);
  log_info("no");
  log_warning("yes");
  log_error("yes");
  CHECK(collected().size() == 2);
  CHECK(!Log::is_enabled(LogLevel::debug));
}

TEST_CASE("log: one event is one line, whatever it contains", "[unit][base]") {
  const Collecting collecting;
  log_info("name={}", "two\nlines\r\x1b[31mred");
  REQUIRE(collected().size() == 1);
  CHECK(collected()[0].find_first_of("\n\r\x1b") == std::string::npos);
  CHECK(collected()[0].find("two lines") != std::string::npos);
}

TEST_CASE("log: files rotate within their limit and lose no line before the oldest",
          "[unit][base]") {
  const auto directory = std::filesystem::temp_directory_path() /
                         ("ckpt-log-test-" + std::to_string(random_from_system()));
  std::filesystem::create_directory(directory);
  const auto path = directory / "ckptd.log";
  REQUIRE(Log::open_file(path.string(), 64 * 1024, 100));
  constexpr int threads = 4;
  constexpr int lines_each = 2000;
  {
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < threads; ++writer) {
      writers.emplace_back([writer] {
        for (int i = 0; i < lines_each; ++i) log_info("writer={} line={} end", writer, i);
      });
    }
  }
  std::size_t lines = 0;
  std::size_t broken = 0;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    ++files;
    CHECK(entry.file_size() <= 64 * 1024);
    for (const std::string& line : lines_of(entry.path())) {
      ++lines;
      if (!line.ends_with(" end") || line.size() < 30) ++broken;
    }
  }
  CHECK(lines == threads * lines_each);
  CHECK(broken == 0);
  CHECK(files > 2);

  const auto other = directory / "other" / "small.log";
  std::filesystem::create_directory(directory / "other");
  REQUIRE(Log::open_file(other.string(), 100, 2));
  for (int i = 0; i < 50; ++i) log_info("line={}", i);
  CHECK(std::filesystem::exists(other.string() + ".2"));
  CHECK(!std::filesystem::exists(other.string() + ".3"));
  CHECK(lines_of(other).back().ends_with("line=49"));
  std::filesystem::remove_all(directory);
  REQUIRE(Log::open_file("/dev/null"));
}

// A pipe with room for one page, which nobody reads before the end: a long line fills it.
struct FullPipe {
  explicit FullPipe(const std::filesystem::path& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
    REQUIRE(::fcntl(fd, F_SETPIPE_SZ, 4096) == 4096);
  }
  ~FullPipe() { ::close(fd); }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  bool is_full() const {
    int bytes = 0;
    return ::ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 4096;
  }
  void empty() const {
    std::array<char, 4096> bytes{};
    (void)!::read(fd, bytes.data(), bytes.size());
  }

  int fd = -1;
};

TEST_CASE("log: a child can log that was forked while another thread wrote a line",
          "[unit][base]") {
  const auto directory = std::filesystem::temp_directory_path() /
                         ("ckpt-log-test-" + std::to_string(random_from_system()));
  std::filesystem::create_directory(directory);
  const FullPipe pipe(directory / "pipe");
  const std::string own = (directory / "child.log").string();
  REQUIRE(Log::open_file((directory / "pipe").string()));
  std::atomic<bool> is_written{false};
  std::thread writer([&] {
    log_info("{}", std::string(10'000, '.'));
    is_written = true;
  });
  while (!pipe.is_full()) std::this_thread::yield();  // Then the writer has the lock.

  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // Ends a child that waits for the lock.
    const bool is_open = Log::open_file(own).has_value();
    log_info("the child's");
    ::_exit(is_open ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  while (!is_written) pipe.empty();
  writer.join();
  CHECK(status == 0);
  CHECK(lines_of(own).size() == 1);
  REQUIRE(Log::open_file("/dev/null"));
  std::filesystem::remove_all(directory);
}

TEST_CASE("log: a file that cannot be opened is an error that names it", "[unit][base]") {
  const auto status = Log::open_file("/nowhere/at/all.log");
  REQUIRE(!status);
  CHECK(status.error().code() == Errc::io);
  CHECK(status.error().message().find("/nowhere/at/all.log") != std::string::npos);
}

TEST_CASE("log: a limited place speaks once and counts what it held back", "[unit][base]") {
  LogLimit once(std::numeric_limits<double>::infinity());
  CHECK(once.may_speak());
  CHECK(!once.may_speak());
  CHECK(!once.may_speak());
  CHECK(once.held_back() == 2);
  LogLimit always(0);
  CHECK(always.may_speak());
  CHECK(always.may_speak());
}

}  // namespace
}  // namespace ckpt::test
