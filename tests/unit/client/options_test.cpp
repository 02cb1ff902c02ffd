// Goal:   every option means the same from code, environment and file, in this order, and the error
//         for a wrong one names it, its value and where it came from.
// Method: the environment and a file in a temporary directory are set for each case, then resolved.
#include <fmt/format.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cctype>
#include <ckpt/options.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/variables.hpp"
#include "client/attach_message.hpp"
#include "client/option_fields.hpp"
#include "client/option_text.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt {

namespace {

using Catch::Contains;

// Sets variables and takes them back.
class Environment {
 public:
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
    if (!file_.empty()) std::filesystem::remove(file_);
  }
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  void write_file(const std::string& text) {
    std::string path = std::filesystem::temp_directory_path() / "ckpt-options-XXXXXX";
    const int fd = mkstemp(path.data());
    REQUIRE(fd >= 0);
    file_ = path;
    std::ofstream(file_) << text;
    set("LIBCKPT_CONFIG", file_);
  }
  const std::string& file() const { return file_; }

 private:
  std::vector<std::string> names_;
  std::string file_;
};

Options minimal() {
  Options options;
  options.job = "gpt2";
  return options;
}

std::string refusal(const Options& options) {
  const auto resolved = Options::resolve(options);
  REQUIRE_FALSE(resolved);
  REQUIRE(resolved.error().code() == Errc::invalid_argument);
  return resolved.error().text();
}

// Every option, at a value that is not its default.
Options all_set() {
  Options options = minimal();
  options.dir = "/ckpt";
  options.rank = 3;
  options.world_size = 8;
  options.nodes = {Node::parse("A@a:1/r1").value(), Node::parse("B@b:2").value()};
  options.node = "B";
  options.incarnation = 5;
  options.save_mem_interval = {0, std::chrono::minutes(5)};
  options.save_storage_interval = {100, {}};
  options.max_ckpt_num = 4;
  options.keep_every = {{1000, 10000}, {5000, {}}};
  options.keep_best = 2;
  options.best_metric = "loss";
  options.best_mode = Best::max;
  options.compression = "zstd:3";
  options.memory_budget = 5 << 20;
  options.replicas = 3;
  options.own_slots = 4;
  options.blob_capacity = 12345;
  options.copy_threads = 7;
  options.gpu_copy_rate = 20 << 20;
  options.gpu_gap = GpuGap::write_value;
  options.gpu_gather = GpuGather::off;
  options.gpu_check = true;
  options.flush_rate = 30 << 20;
  options.replica_rate = 40 << 20;
  options.skip_unchanged = true;
  options.yield = Yield::off;
  options.runtime_dir = "/run/x";
  options.daemon_path = "/bin/ckptd";
  options.embedded = true;
  options.secret_file = "/secret";
  options.interface = "10.0.0.2";
  options.port = 7711;
  options.log_file_path = "/log";
  options.disable = true;
  options.checksum_in_copy = false;
  options.compare_copies = false;
  options.open_deadline = std::chrono::milliseconds(1500);
  options.restore_deadline = std::chrono::hours(1);
  return options;
}

}  // namespace

TEST_CASE("options: intervals are steps, time or never", "[unit][client]") {
  REQUIRE(Interval::parse("100")->steps == 100);
  REQUIRE(Interval::parse(" 15min ")->time == std::chrono::minutes(15));
  REQUIRE(Interval::parse("60 s")->time == std::chrono::seconds(60));
  REQUIRE(Interval::parse("250ms")->time == std::chrono::milliseconds(250));
  REQUIRE(Interval::parse("2h")->time == std::chrono::hours(2));
  REQUIRE(Interval::parse("never")->is_never());
  REQUIRE(Interval::parse("0")->is_never());
  for (const char* bad : {"", "15 parsecs", "-1", "1.5h", "10 min later", "99999999999999999999",
                          "9223372036854775807h"}) {
    const auto parsed = Interval::parse(bad);
    INFO(bad);
    REQUIRE_FALSE(parsed);
    REQUIRE(parsed.error().code() == Errc::invalid_argument);
  }
}

TEST_CASE("options: a time longer than nanoseconds can count is as good as for ever",
          "[unit][client]") {
  Options options = minimal();
  options.dir = "/ckpt";
  REQUIRE(options.set("open_deadline", "2600000h"));
  REQUIRE(options.set("restore_deadline", "2562047788015h"));
  REQUIRE(options.set("save_mem_interval", "2600000h"));
  REQUIRE(options.set("save_storage_interval", "2562047788015h"));
  const auto resolved = Options::resolve(options);
  REQUIRE(resolved);
  for (const std::chrono::milliseconds duration :
       {resolved->open_deadline, resolved->restore_deadline, resolved->save_mem_interval.time,
        resolved->save_storage_interval.time}) {
    CHECK(duration > std::chrono::years(50));
    CHECK(duration < std::chrono::years(150));  // Of the 292 that nanoseconds have.
  }
}

TEST_CASE("options: with a directory steps are stored every half hour unless chosen otherwise",
          "[unit][client]") {
  Options options = minimal();
  CHECK(Options::resolve(options)->save_storage_interval.is_never());
  options.dir = "/ckpt";
  const auto chosen = [&options] {
    const auto resolved = Options::resolve(options);
    REQUIRE(resolved);
    return resolved->save_storage_interval;
  };
  CHECK(chosen().steps == 0);
  CHECK(chosen().time == std::chrono::minutes(30));
  options.save_storage_interval.steps = 100;
  CHECK(chosen().steps == 100);
  CHECK(chosen().time == std::chrono::milliseconds(0));
  options.save_storage_interval = {};  // Never, in so many words.
  CHECK(chosen().is_never());
  REQUIRE(options.set("save_storage_interval", "never"));
  CHECK(chosen().is_never());
}

TEST_CASE("options: a directory of the environment has its interval, too", "[unit][client]") {
  Environment environment;
  environment.set("LIBCKPT_DIR", "/ckpt");
  CHECK(Options::resolve(minimal())->save_storage_interval.time == std::chrono::minutes(30));
  environment.set("LIBCKPT_SAVE_STORAGE_INTERVAL", "never");
  CHECK(Options::resolve(minimal())->save_storage_interval.is_never());
}

TEST_CASE("options: zero is never for storage, and refused for captures", "[unit][client]") {
  Options options;
  REQUIRE(options.set("save_storage_interval", "0"));
  REQUIRE(options.save_storage_interval.is_never());
  for (const char* nothing : {"0", "0s"}) {
    const Status refused = options.set("save_mem_interval", nothing);
    REQUIRE_FALSE(refused);
    REQUIRE_THAT(refused.error().text(), Contains("no step would ever be due"));
  }
  REQUIRE(options.set("save_mem_interval", "never"));
  REQUIRE(options.save_mem_interval.is_never());
}

TEST_CASE("options: code that leaves no captures must say never", "[unit][client]") {
  Options options = minimal();
  options.save_mem_interval = GENERATE(Interval{}, Interval::parse("0").value());
  const auto refused = Options::resolve(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(),
             Contains("option save_mem_interval = \"0\" (code): no step would ever be due"));
  options.save_mem_interval = GENERATE(Interval::never(), Interval::parse("never").value());
  options.dir = "/ckpt";
  options.save_storage_interval = Interval::never();
  const auto resolved = Options::resolve(options);
  REQUIRE(resolved);
  CHECK(resolved->save_mem_interval.is_never());
  CHECK(Options::resolve(*resolved));
  const auto explained = explain(options);
  REQUIRE(explained);
  for (const OptionOrigin& option : *explained)
    if (option.name.ends_with("_interval")) CHECK(option.value == "never");
  const auto attach = client::make_attach(*resolved);
  REQUIRE(attach);
  CHECK(attach->save_mem_interval.time.count() == 0);
  CHECK(attach->save_storage_interval.time.count() == 0);
}

TEST_CASE("options: nodes have a name, an address and a failure domain", "[unit][client]") {
  const Node full = Node::parse("A@10.0.0.1:7711/rack-3").value();
  REQUIRE(full.name == "A");
  REQUIRE(full.address == "10.0.0.1:7711");
  REQUIRE(full.failure_domain == "rack-3");
  REQUIRE(Node::parse("b-1@[::1]:80")->address == "[::1]:80");
  REQUIRE(Node::parse("b-1@host:80")->failure_domain == "b-1");
  REQUIRE(Node::parse("alone")->address.empty());
  for (const char* bad : {"", "@host:1", "A@host", "A@host:", "A@host:0", "A@host:65536", "A@:80",
                          "A B@host:80", "A@host:80/", "A@ho st:80", "A@host:80x"}) {
    INFO(bad);
    REQUIRE_FALSE(Node::parse(bad));
  }
}

TEST_CASE("options: code goes over environment, environment over file", "[unit][client]") {
  Environment environment;
  environment.write_file("# ours\n\n job = from-file \nreplicas=3\nmax_ckpt_num = 7\n");
  REQUIRE(Options::resolve({})->job == "from-file");
  environment.set("LIBCKPT_JOB", "from-environment");
  environment.set("LIBCKPT_REPLICAS", "4");
  Options options;
  REQUIRE(Options::resolve(options)->job == "from-environment");
  options.job = "from-code";
  const Options resolved = Options::resolve(options).value();
  REQUIRE(resolved.job == "from-code");
  REQUIRE(resolved.replicas == 4);
  REQUIRE(resolved.max_ckpt_num == 7);
}

TEST_CASE("options: explain tells where each value came from", "[unit][client]") {
  Environment environment;
  environment.write_file("job = gpt2\nreplicas = 3\n");
  environment.set("LIBCKPT_MEMORY_BUDGET", "3 GiB");
  Options given;
  given.dir = "/ckpt";
  const auto rows = explain(given).value();
  REQUIRE(rows.size() == client::option_fields().size());
  for (const OptionOrigin& row : rows) {
    INFO(row.name);
    if (row.name == "job") REQUIRE(row.origin == "file " + environment.file() + " line 1");
    if (row.name == "replicas") REQUIRE(row.value == "3");
    if (row.name == "memory_budget") {
      REQUIRE(row.value == "3GiB");
      REQUIRE(row.origin == "environment LIBCKPT_MEMORY_BUDGET");
    }
    if (row.name == "dir") REQUIRE(row.origin == "code");
    if (row.name == "open_deadline") {
      REQUIRE(row.value == "10s");
      REQUIRE(row.origin == "default");
    }
  }
}

TEST_CASE("options: the option of the Python package may stand beside ours", "[unit][client]") {
  static std::vector<std::string> logged;
  logged.clear();
  Environment environment;
  environment.write_file("job = gpt2\nraise_on_error = true\n");
  environment.set("LIBCKPT_RAISE_ON_ERROR", "1");
  Log::set_level(LogLevel::warning);
  Log::set_sink([](LogLevel, std::string_view line) { logged.emplace_back(line); });
  const auto resolved = Options::resolve({});
  Log::set_sink(nullptr);
  REQUIRE(resolved);
  CHECK(logged.empty());
  Options options;
  CHECK(options.set("raise_on_error", "1").error().code() == Errc::invalid_argument);
}

TEST_CASE("options: every option's shown value can be read back", "[unit][client]") {
  const Options options = all_set();
  Options back;
  const Options defaults;
  for (const client::OptionField& field : client::option_fields()) {
    INFO(field.name);
    REQUIRE(field.show(options) != field.show(defaults));  // Every option is covered here.
    REQUIRE(field.parse(back, field.show(options)));
    REQUIRE(field.show(back) == field.show(options));
  }
}

TEST_CASE("options: every option is read from the environment and from the file",
          "[unit][client]") {
  const Options wanted = all_set();
  const bool is_file = GENERATE(false, true);
  std::string file = "job = gpt2\n";
  for (const client::OptionField& field : client::option_fields()) {
    // A disabled library needs no other option.
    if (field.name == "job" || field.name == "disable") continue;
    file += fmt::format("{} = {}\n", field.name, field.show(wanted));
  }
  Environment environment;
  environment.write_file(is_file ? file : "");
  if (!is_file) {
    for (const client::OptionField& field : client::option_fields()) {
      if (field.name == "disable") continue;
      std::string name = "LIBCKPT_";
      for (const char letter : field.name) name += static_cast<char>(std::toupper(letter));
      environment.set(name, field.show(wanted));
    }
  }
  const auto resolved = Options::resolve({});
  if (!resolved) FAIL(resolved.error().message());
  const auto rows = explain({}).value();
  REQUIRE(rows.size() == client::option_fields().size());
  for (const OptionOrigin& row : rows) {
    if (row.name == "disable") continue;
    INFO(row.name << " from " << row.origin);
    const client::OptionField* field = client::find_option_field(row.name);
    REQUIRE(field->show(*resolved) == field->show(wanted));
    REQUIRE_THAT(row.origin, Catch::Matchers::StartsWith(is_file ? "file " : "environment "));
  }
}

TEST_CASE("options: a wrong value is reported with name, value and origin", "[unit][client]") {
  Environment environment;
  SECTION("no job") {
    REQUIRE_THAT(refusal({}), Contains("job") && Contains("required"));
  }
  SECTION("from the environment, no number") {
    environment.set("LIBCKPT_WORLD_SIZE", "many");
    REQUIRE_THAT(refusal(minimal()),
                 Contains("world_size = \"many\" (environment LIBCKPT_WORLD_SIZE)"));
  }
  SECTION("from the environment, out of range") {
    environment.set("LIBCKPT_RANK", "5");
    environment.set("LIBCKPT_WORLD_SIZE", "4");
    REQUIRE_THAT(refusal(minimal()), Contains("rank = \"5\" (environment LIBCKPT_RANK)") &&
                                         Contains("below world_size, which is 4"));
  }
  SECTION("from the file") {
    environment.write_file("job = gpt2\nport = 70000\n");
    REQUIRE_THAT(refusal({}), Contains("port") && Contains("line 2") && Contains("65535"));
  }
  SECTION("a misspelt key") {
    environment.write_file("job = gpt2\nreplica = 2\n");
    REQUIRE_THAT(refusal({}), Contains("line 2") && Contains("no option \"replica\""));
  }
  SECTION("a line without a value") {
    environment.write_file("job\n");
    REQUIRE_THAT(refusal({}), Contains("key = value"));
  }
  SECTION("set twice") {
    environment.write_file("job = a\njob = b\n");
    REQUIRE_THAT(refusal({}), Contains("twice"));
  }
}

TEST_CASE("options: words for what stays on storage are checked together", "[unit][client]") {
  const auto problem_of = [](std::vector<KeepInterval> every, std::uint32_t best,
                             const std::string& metric, std::uint32_t newest) {
    Options options = minimal();
    options.keep_every = std::move(every);
    options.keep_best = best;
    options.best_metric = metric;
    options.max_ckpt_num = newest;
    const auto resolved = Options::resolve(options);
    return resolved ? std::string() : resolved.error().text();
  };
  CHECK(problem_of({{1000, 10000}, {5000, {}}}, 2, "loss", 1).empty());
  CHECK(problem_of({{1000, 10000}, {5000, 20000}}, 0, "", 1).empty());
  CHECK_THAT(problem_of({{0, {}}}, 0, "", 1), Contains("keep_every") && Contains("from 1"));
  CHECK_THAT(problem_of({{1000, {}}, {5000, {}}}, 0, "", 1), Contains("last interval only"));
  CHECK_THAT(problem_of({{1000, 100}, {5000, 100}}, 0, "", 1), Contains("in the order"));
  CHECK_THAT(problem_of(std::vector<KeepInterval>(65, {1, {}}), 0, "", 1), Contains("than 64"));
  CHECK_THAT(problem_of({}, 2, "", 1), Contains("keep_best") && Contains("needs best_metric"));
  CHECK_THAT(problem_of({}, 0, "loss", 1), Contains("best_metric") && Contains("needs keep_best"));
  CHECK_THAT(problem_of({}, 2, std::string(129, 'a'), 1), Contains("at most 128 bytes"));
  CHECK_THAT(problem_of({{5, {}}}, 0, "", 0), Contains("keep_every") && Contains("max_ckpt_num"));
  CHECK_THAT(problem_of({}, 2, "loss", 0), Contains("keep_best") && Contains("max_ckpt_num"));
}

TEST_CASE("options: intervals of steps that stay are read and shown", "[unit][client]") {
  Options options;
  REQUIRE(options.set("keep_every", " 1000 until 10000 ,5000"));
  CHECK(options.keep_every == std::vector<KeepInterval>{{1000, 10000}, {5000, {}}});
  REQUIRE(options.set("keep_every", ""));
  CHECK(options.keep_every.empty());
  for (const auto* bad : {"often", "5 until", "5 until never", "5,", ",5", "5 10", "-5"}) {
    CAPTURE(bad);
    CHECK_FALSE(options.set("keep_every", bad));
  }
  REQUIRE(options.set("best_mode", "max"));
  CHECK(options.best_mode == Best::max);
  CHECK_FALSE(options.set("best_mode", "greatest"));
}

TEST_CASE("options: values out of their limits are refused", "[unit][client]") {
  Options options = minimal();
  std::string name;
  SECTION("job") {
    options.job = "a/b", name = "job";
  }
  SECTION("job of dots") {
    options.job = "..", name = "job";
  }
  SECTION("job too long") {
    options.job = std::string(129, 'a'), name = "job";
  }
  SECTION("rank") {
    options.rank = 1, name = "rank";
  }
  SECTION("world_size") {
    options.world_size = 0, name = "world_size";
  }
  SECTION("replicas") {
    options.replicas = 0, name = "replicas";
  }
  SECTION("own_slots") {
    options.own_slots = 1, name = "own_slots";
  }
  SECTION("copy_threads 0") {
    options.copy_threads = 0, name = "copy_threads";
  }
  SECTION("copy_threads 65") {
    options.copy_threads = 65, name = "copy_threads";
  }
  SECTION("flush_rate") {
    options.flush_rate = (1 << 20) - 1, name = "flush_rate";
  }
  SECTION("replica_rate") {
    options.replica_rate = 1, name = "replica_rate";
  }
  SECTION("runtime_dir") {
    options.runtime_dir = "relative", name = "runtime_dir";
  }
  SECTION("open_deadline") {
    options.open_deadline = {}, name = "open_deadline";
  }
  SECTION("restore_deadline") {
    options.restore_deadline = {}, name = "restore_deadline";
  }
  SECTION("interval") {
    options.save_mem_interval = {1, std::chrono::seconds(1)}, name = "save_mem_interval";
  }
  SECTION("storage without dir") {
    options.save_storage_interval = {10, {}}, name = "save_storage_interval";
  }
  SECTION("more nodes than ranks") {
    options.nodes = {Node::parse("A@a:1").value(), Node::parse("B@b:1").value()};
    options.node = "A", name = "nodes";
  }
  SECTION("node twice") {
    options.nodes = {Node::parse("A@a:1").value(), Node::parse("A@b:1").value()};
    options.world_size = 2, options.node = "A", name = "nodes";
  }
  SECTION("node without an address") {
    options.nodes = {Node::parse("A@a:1").value(), Node::parse("B").value()};
    options.world_size = 2, options.node = "A", name = "nodes";
  }
  SECTION("a node that is not listed") {
    options.nodes = {Node::parse("A@a:1").value(), Node::parse("B@b:1").value()};
    options.world_size = 2, options.node = "C", name = "node";
  }
  REQUIRE_THAT(refusal(options), Contains("option " + name + " = "));
}

TEST_CASE("options: each of two places becomes absolute by itself", "[unit][client]") {
  Options options = minimal();
  const std::string here = std::filesystem::current_path().string();
  options.dir = "out/, s3://bucket//run/ every 10";
  REQUIRE(Options::resolve(options)->dir == here + "/out, s3://bucket/run every 10");
  options.dir = "s3://bucket/run, out every 2h";
  REQUIRE(Options::resolve(options)->dir == "s3://bucket/run, " + here + "/out every 2h");
  options.dir = "out, " + here + "/out";  // One place by two names.
  REQUIRE_THAT(refusal(options), Contains("option dir") && Contains("both places are the same"));
  options.dir = "a, b, c";
  REQUIRE_THAT(refusal(options), Contains("option dir") && Contains("two at most"));
}

TEST_CASE("options: paths become absolute and the only node is ours", "[unit][client]") {
  Options options = minimal();
  options.dir = "ckpt/../out/";
  options.nodes = {Node{"A", "", ""}};
  const Options resolved = Options::resolve(options).value();
  REQUIRE(resolved.dir == (std::filesystem::current_path() / "out").string());
  REQUIRE(resolved.runtime_dir.empty());
  REQUIRE(resolved.node == "A");
  REQUIRE(resolved.nodes[0].failure_domain == "A");
}

TEST_CASE("options: no other option stops a disabled library", "[unit][client]") {
  Environment environment;
  environment.set("LIBCKPT_DISABLE", "1");
  environment.set("LIBCKPT_WORLD_SIZE", "nonsense");
  environment.set("LIBCKPT_CONFIG", "/nowhere/at/all");
  const auto resolved = Options::resolve({});
  REQUIRE(resolved);
  REQUIRE(resolved->disable);
  REQUIRE(explain({}));
}

TEST_CASE("options: a variable that is misspelt is warned of, and stops nobody", "[unit][client]") {
  Environment environment;
  environment.set("LIBCKPT_SAVE_MEM_INTERVALL", "5");
  environment.set("LIBCKPT_LOG_LEVEL", "info");
  environment.set("LIBCKPT_RANK", "0");
  static std::string warned;
  warned.clear();
  Log::set_sink([](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) warned += line;
  });
  const auto resolved = Options::resolve(minimal());
  Log::set_sink(nullptr);
  REQUIRE(resolved);
  REQUIRE_THAT(warned, Contains("LIBCKPT_SAVE_MEM_INTERVALL: there is no such option"));
  REQUIRE_THAT(warned, !Contains("LIBCKPT_LOG_LEVEL") && !Contains("LIBCKPT_RANK"));
}

TEST_CASE("options: a level of the log that does not exist is warned of once, with those that do",
          "[unit][client]") {
  Environment environment;
  static std::string warned;
  warned.clear();
  const auto resolve = [&](const char* chosen) {
    environment.set("LIBCKPT_LOG_LEVEL", chosen);
    Log::set_sink([](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) warned += line;
    });
    const auto resolved = Options::resolve(minimal());
    Log::set_sink(nullptr);
    REQUIRE(resolved);
    return std::exchange(warned, {});
  };
  for (const char* level : {"", "debug", "info", "warning", "error"}) CHECK(resolve(level).empty());
  const std::string first = resolve("loud");
  CHECK_THAT(first, Contains("environment LIBCKPT_LOG_LEVEL = \"loud\": there is no such level; it "
                             "is debug, info, warning or error, and info counts"));
  CHECK(resolve("louder").empty());
}

TEST_CASE("options: a variable that some part of libckpt reads is not warned of",
          "[unit][client]") {
  // Every name that stands alone between quotes in the sources.
  std::set<std::string> read;
  for (const char* folder : {"/libckpt", "/bindings"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(CKPT_SOURCE_DIR + std::string(folder))) {
      const auto type = entry.path().extension();
      if (type != ".cpp" && type != ".py") continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string content = text.str();
      for (auto at = content.find("LIBCKPT_"); at != std::string::npos;
           at = content.find("LIBCKPT_", at + 1)) {
        const auto end = content.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", at);
        const std::string name = content.substr(at, end - at);
        if (at > 0 && content[at - 1] == '"' && content[end] == '"' && name != variable_prefix)
          read.insert(name);
      }
    }
  }
  CHECK(read.contains("LIBCKPT_S3_ADDRESSING"));
  CHECK(read.contains("LIBCKPT_NCCL"));
  Environment environment;
  for (const DaemonFlag& flag : daemon_flags) read.insert(flag.variable);
  read.erase("LIBCKPT_CONFIG");  // It is read, and is a name of a file.
  for (const std::string& name : read) environment.set(name, "");
  static std::string warned;
  warned.clear();
  Log::set_sink([](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) warned += line;
  });
  const auto resolved = Options::resolve(minimal());
  Log::set_sink(nullptr);
  CHECK(resolved);
  CHECK(warned.empty());
}

TEST_CASE("options: a configuration file that cannot be read is an error", "[unit][client]") {
  const test::TemporaryDirectory directory;
  const std::string fifo = directory.file("fifo"), large = directory.file("large");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  struct Case {
    std::string path, why;
  };
  for (const auto& [path, why] :
       {Case{"/nowhere/at/all", "there is no such file"},
        Case{directory.path(), "it is a directory"}, Case{fifo, "it is no regular file"},
        Case{"/dev/zero", "it is no regular file"},
        Case{"/proc/self/mem", "read /proc/self/mem"},  // EIO.
        Case{large, "more than 1048576 bytes"}}) {
    Environment environment;
    environment.set("LIBCKPT_CONFIG", path);
    const auto resolved = Options::resolve(minimal());
    INFO(path);
    REQUIRE_FALSE(resolved);
    CHECK(resolved.error().code() == Errc::io);
    CHECK_THAT(resolved.error().text(),
               Contains("LIBCKPT_CONFIG") && Contains(path) && Contains(why));
    CHECK_FALSE(explain(minimal()));
  }
}

TEST_CASE("options: a configuration file may be a link, and end without a newline",
          "[unit][client]") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.file("conf")) << "\njob = linked\r\nreplicas = 3";
  std::filesystem::create_symlink(directory.file("conf"), directory.file("link"));
  Environment environment;
  environment.set("LIBCKPT_CONFIG", directory.file("link"));
  const auto resolved = Options::resolve({});
  REQUIRE(resolved);
  CHECK(resolved->job == "linked");
  CHECK(resolved->replicas == 3);
}

}  // namespace ckpt
