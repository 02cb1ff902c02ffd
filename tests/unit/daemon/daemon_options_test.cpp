// Goal:   ckptd takes its options from flags over the environment over a file, and refuses nonsense
//         with a text that names it.
// Method: parse argument lists, with the environment and a file set where they matter.
#include "daemon/daemon_options.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "base/units.hpp"
#include "base/variables.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::daemon {
namespace {

Parsed parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ckptd");
  return parse_arguments(static_cast<int>(arguments.size()), arguments.data());
}

struct Environment {
  Environment(const char* the_name, const char* value) : name(the_name) {
    ::setenv(name, value, 1);
  }
  ~Environment() { ::unsetenv(name); }
  const char* name;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("daemon options: sizes and durations as people write them", "[unit][daemon]") {
  CHECK(parse_bytes("0").value() == 0);
  CHECK(parse_bytes("1048576").value() == MiB);
  CHECK(parse_bytes("64GiB").value() == 64 * GiB);
  CHECK(parse_bytes("64 G").value() == 64 * GiB);
  CHECK(parse_bytes("500MB").value() == 500'000'000);
  CHECK(parse_duration("250ms").value() == std::chrono::milliseconds(250));
  CHECK(parse_duration("15min").value() == std::chrono::minutes(15));
  CHECK(parse_duration("2h").value() == std::chrono::hours(2));
  for (const char* text : {"", "GiB", "-1", "1.5GiB", "1 parsec", "99999999999999999999", "1e9",
                           "9223372036854775807KiB"}) {
    INFO(text);
    CHECK(parse_bytes(text).error().code() == Errc::invalid_argument);
  }
  for (const char* text : {"", "h", "5 years", "-1s"}) {
    INFO(text);
    CHECK(parse_duration(text).error().code() == Errc::invalid_argument);
  }
}

TEST_CASE("daemon options: flags over environment over file over defaults", "[unit][daemon]") {
  CHECK(parse({}).options.idle_limit == std::chrono::hours(2));
  const test::TemporaryDirectory directory;
  const std::string file = directory.file("ckptd.conf");
  std::ofstream(file) << "idle-limit = 1h\nmemory-budget = 1GiB\n";
  const Environment config("LIBCKPT_DAEMON_CONFIG", file.c_str());
  CHECK(parse({}).options.idle_limit == std::chrono::hours(1));
  CHECK(parse({}).options.memory_budget == GiB);
  const Environment budget("LIBCKPT_MEMORY_BUDGET", "2GiB");
  CHECK(parse({}).options.memory_budget == 2 * GiB);
  CHECK(parse({"--memory-budget", "3GiB"}).options.memory_budget == 3 * GiB);
}

TEST_CASE("daemon options: several directories are one value, wherever they are given",
          "[unit][daemon]") {
  const test::TemporaryDirectory directory;
  const std::string file = directory.file("ckptd.conf");
  std::ofstream(file) << "confine-to = /ckpt, /scratch/ckpt\n";
  const Environment config("LIBCKPT_DAEMON_CONFIG", file.c_str());
  CHECK(parse({}).options.confine_to == "/ckpt, /scratch/ckpt");
  const Environment given("LIBCKPT_CONFINE_TO", "/a,/b");
  CHECK(parse({}).options.confine_to == "/a,/b");
  CHECK(parse({"--confine-to", "/c"}).options.confine_to == "/c");
  const Environment wrong("LIBCKPT_CONFINE_TO", "run,/b");
  CHECK(parse({}).exit_code == 2);
  CHECK(contains(parse({}).text, "--confine-to: \"run,/b\""));
}

TEST_CASE("daemon options: wrong use is exit code 2 and says what is wrong", "[unit][daemon]") {
  const auto unknown = parse({"--bandwith", "7"});
  CHECK(unknown.must_exit);
  CHECK(unknown.exit_code == 2);
  CHECK(contains(unknown.text, "--bandwith"));
  const auto budget = parse({"--memory-budget", "many"});
  CHECK(budget.exit_code == 2);
  CHECK(contains(budget.text, "many"));
  CHECK(parse({"--log-level", "loud"}).exit_code == 2);
  CHECK(parse({"--nice", "20"}).exit_code == 2);
  CHECK(parse({"--nice", "-1"}).exit_code == 2);
  const auto listen = parse({"--listen", "10.0.0.1"});
  CHECK(listen.exit_code == 2);
  CHECK(contains(listen.text, "\"10.0.0.1\": there is no port"));
}

// A trainer that has started the daemon tells the last line of its log.
TEST_CASE("daemon options: wrong use is one line, with the reason", "[unit][daemon]") {
  struct Case {
    const char *variable, *value, *reason;
  };
  for (const auto& [variable, value, reason] :
       {Case{"LIBCKPT_LISTEN", "foo", "there is no port"}, Case{"LIBCKPT_NICE", "99", "--nice"},
        Case{"LIBCKPT_IDLE_LIMIT", "abc", "\"abc\""},
        Case{"LIBCKPT_ALL_CORES", "maybe", "maybe"}}) {
    const Environment environment(variable, value);
    const auto parsed = parse({});
    CAPTURE(parsed.text);
    CHECK(parsed.exit_code == 2);
    CHECK(contains(parsed.text, reason));
    CHECK(parsed.text.starts_with("ckptd: "));
    CHECK(parsed.text.find('\n') == parsed.text.size() - 1);
  }
}

TEST_CASE("daemon options: an unknown level in the environment is left out, as in a trainer",
          "[unit][daemon]") {
  const Environment environment("LIBCKPT_LOG_LEVEL", "loud");
  const auto parsed = parse({});
  CHECK_FALSE(parsed.must_exit);
  CHECK(parsed.options.log_level == "info");
  const Environment known("LIBCKPT_LOG_LEVEL", "error");
  CHECK(parse({}).options.log_level == "error");
}

TEST_CASE("daemon options: a file that is named and missing is wrong use", "[unit][daemon]") {
  CHECK(parse({"--config", "/nonexistent/ckptd.conf"}).exit_code == 2);
  const Environment config("LIBCKPT_DAEMON_CONFIG", "/nonexistent/ckptd.conf");
  CHECK(parse({}).exit_code == 2);
}

TEST_CASE("daemon options: a file that cannot be read is wrong use, and holds nobody",
          "[unit][daemon]") {
  const test::TemporaryDirectory directory;
  const std::string fifo = directory.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const std::string& path :
       {directory.path().string(), fifo, std::string("/dev/zero"), std::string("/proc/self/mem")}) {
    const auto parsed = parse({"--config", path.c_str()});
    INFO(path);
    CHECK(parsed.exit_code == 2);
    CHECK(contains(parsed.text, "read " + path));
  }
  std::ofstream(directory.file("conf")) << "listen = 10.0.0.7:1\n";
  std::filesystem::create_symlink(directory.file("conf"), directory.file("link"));
  CHECK(parse({"--config", directory.file("link").c_str()}).options.listen == "10.0.0.7:1");
}

TEST_CASE("daemon options: its starter says whether it keeps to the cores that it was given",
          "[unit][daemon]") {
  CHECK_FALSE(parse({}).options.all_cores);
  CHECK(parse({"--all-cores"}).options.all_cores);
  {
    const Environment wide("LIBCKPT_ALL_CORES", "true");
    CHECK(parse({}).options.all_cores);
  }
  const Environment kept("LIBCKPT_ALL_CORES", "0");
  CHECK_FALSE(parse({}).options.all_cores);
}

TEST_CASE("daemon options: help and version end well", "[unit][daemon]") {
  CHECK(parse({"--help"}).exit_code == 0);
  CHECK(contains(parse({"--help"}).text, "LIBCKPT_RUNTIME_DIR"));
  CHECK(parse({"--version"}).exit_code == 0);
  CHECK(contains(parse({"--version"}).text, "ckptd 0."));
}

TEST_CASE("daemon options: each can be given in the environment", "[unit][daemon]") {
  const std::string help = parse({"--help"}).text;
  std::size_t flags = 0;
  for (auto at = help.find("\n  --"); at != std::string::npos; at = help.find("\n  --", at + 1)) {
    const std::string name = help.substr(at + 3, help.find_first_of(" \n", at + 3) - at - 3);
    INFO(name);
    const auto is_it = [&](const DaemonFlag& flag) { return name == flag.name; };
    CHECK((name == "--version" || std::ranges::any_of(daemon_flags, is_it)));
    ++flags;
  }
  CHECK(flags >= 2 * daemon_flags.size());  // Each with its meaning, and with its variable.
}

TEST_CASE("daemon options: every effective value is logged at the start", "[unit][daemon]") {
  const auto lines = describe(parse({"--listen", "10.0.0.1:7711", "--nice", "7"}).options);
  const auto has = [&](const std::string& line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  CHECK(has("listen=10.0.0.1:7711"));
  CHECK(has("idle_limit=7200s"));
  CHECK(has("nice=7"));
  CHECK(lines.size() == 15);
  CHECK(has("confine_to=(nothing)"));
  CHECK(has("verify_every=600s"));
  CHECK(has("verify_stored=false"));
  CHECK(has("require_mount=false"));
}

}  // namespace ckpt::daemon
