// Goal:   what `ckpt` prints and its exit codes are what people and scripts may rely on.
// Method: a trainer in this process saves through the real ckptd, in a directory of its own; then
//         the real program `ckpt` is run, command by command, also where nothing is as it should.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/units.hpp"
#include "cli/cgroup.hpp"
#include "os/landlock.hpp"
#include "os/process.hpp"
#include "os/runtime_directory.hpp"
#include "os/small_file.hpp"
#include "support/program_path.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt {
namespace {

constexpr std::chrono::milliseconds patience = std::chrono::seconds(30);

struct Answer {
  int code = -1;
  std::string out, err;
  nlohmann::json json() const {
    auto parsed = nlohmann::json::parse(out, nullptr, false);
    INFO("standard output: " << out);
    REQUIRE(parsed.is_object());
    return parsed;
  }
};

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class Says {
 public:
  explicit Says(const std::string& text) : text_(text) {}
  bool operator()(const std::string& part) const { return text_.find(part) != std::string::npos; }

 private:
  const std::string& text_;
};

// The directories of one test, and the daemon that lives there.
struct Place {
  Place() {
    options.job = "gpt2";
    options.dir = directory.file("store");
    std::filesystem::create_directory(options.dir);
    options.runtime_dir = directory.file("run");
    options.daemon_path = test::program_path("ckptd");
    options.memory_budget = 256 * MiB;
    options.replicas = 1;
    options.save_storage_interval = Interval{2, {}};
  }
  ~Place() {
    const auto text = os::read_file(options.runtime_dir + "/ckptd.json", 4096);
    if (!text) return;
    const auto ready = nlohmann::json::parse(*text, nullptr, false);
    const auto process = os::open_process(ready.value("pid", 0));
    if (process) (void)os::kill_process(*process, SIGKILL);
  }

  // `environment`: assignments before the command. `as`: of one that runs beside others.
  Answer ckpt(const std::string& arguments, const std::string& environment = "",
              const std::string& as = "") const {
    const std::string out = directory.file(as + "out"), err = directory.file(as + "err");
    const std::string command = "env " + environment + " '" + test::program_path("ckpt") + "' " +
                                arguments + " >'" + out + "' 2>'" + err + "'";
    const int status = std::system(command.c_str());
    Answer answer;
    REQUIRE(WIFEXITED(status));
    answer.code = WEXITSTATUS(status);
    answer.out = file_text(out);
    answer.err = file_text(err);
    return answer;
  }
  // Until the daemon's status is so; it learns of a death, or a question, when it gets to it.
  void until_status(const std::function<bool(const nlohmann::json&)>& is_so) const {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!is_so(ckpt("status --json" + runtime()).json()))
      REQUIRE(std::chrono::steady_clock::now() < deadline);
  }
  pid_t daemon() const {
    const auto text = os::read_file(options.runtime_dir + "/ckptd.json", 4096);
    REQUIRE(text);
    return nlohmann::json::parse(*text)["pid"];
  }
  // Limits the files of the daemon that runs there.
  void limit_file_size(rlim_t bytes) const {
    const rlimit limit{bytes, RLIM_INFINITY};
    REQUIRE(::prlimit(daemon(), RLIMIT_FSIZE, &limit, nullptr) == 0);
  }
  std::string runtime() const { return " --runtime-dir '" + options.runtime_dir + "'"; }

  test::TemporaryDirectory directory;
  Options options;
};

// A trainer with five megabytes of weights: two chunks, the last one short.
struct Trainer {
  explicit Trainer(const Options& options) : weights(5 * MiB / sizeof(float), 1.5f) {
    auto opened = Checkpointer::open(options);
    if (!opened) FAIL(opened.error().message());
    checkpointer.emplace(std::move(*opened));
    TensorRef tensor;
    tensor.data = weights.data();
    tensor.dtype = DType::f32;
    tensor.shape = {static_cast<std::int64_t>(weights.size())};
    REQUIRE(checkpointer->add("weights", tensor));
  }
  void save(std::uint64_t step, Level level) {
    const auto saved = checkpointer->save(Step{step});
    REQUIRE(saved);
    REQUIRE(*saved == SaveOutcome::started);
    const Status reached = checkpointer->wait(Step{step}, level, patience);
    if (!reached) FAIL(reached.error().message());
  }
  std::vector<float> weights;
  std::optional<Checkpointer> checkpointer;
};

// The finding of doctor on `name`.
std::string member(const nlohmann::json& told, const std::string& name, const char* what) {
  for (const auto& finding : told["findings"]) {
    if (finding["name"] == name) return finding[what].get<std::string>();
  }
  return "missing";
}
std::string grade(const nlohmann::json& told, const std::string& name) {
  return member(told, name, "grade");
}

void flip_a_byte(const std::string& path, std::streamoff offset) {
  ::chmod(path.c_str(), 0600);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(file.is_open());
  char byte = 0;
  file.seekg(offset);
  file.get(byte);
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 1));
  REQUIRE(file.good());
}

// Does something, once, when another process opens `path`, which it does not get before that is
// done. Only root may hold up others: without it the process may get on meanwhile.
class OnceOpened {
 public:
  OnceOpened(const std::string& path, std::function<void()> action)
      : holds_(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY)),
        events_(holds_ >= 0 ? holds_ : ::inotify_init1(IN_CLOEXEC)) {
    REQUIRE(events_ >= 0);
    const bool is_watched = holds_ >= 0 ? ::fanotify_mark(holds_, FAN_MARK_ADD, FAN_OPEN_PERM,
                                                          AT_FDCWD, path.c_str()) == 0
                                        : ::inotify_add_watch(events_, path.c_str(), IN_OPEN) >= 0;
    REQUIRE(is_watched);
    thread_ = std::thread([this, action = std::move(action)] {
      pollfd opened{events_, POLLIN, 0};
      if (::poll(&opened, 1, static_cast<int>(patience.count())) != 1) return;
      action();
      if (holds_ >= 0) let_through();
    });
  }
  ~OnceOpened() {
    finish();
    ::close(events_);  // Other openers are let through.
  }
  OnceOpened(const OnceOpened&) = delete;
  OnceOpened& operator=(const OnceOpened&) = delete;
  void finish() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // Those that wait by now; later ones are not held up.
  void let_through() {
    (void)::fanotify_mark(holds_, FAN_MARK_FLUSH, 0, AT_FDCWD, nullptr);
    fanotify_event_metadata event{};
    while (::read(holds_, &event, sizeof(event)) == static_cast<ssize_t>(sizeof(event))) {
      const fanotify_response allowed{event.fd, FAN_ALLOW};
      [[maybe_unused]] const auto written = ::write(holds_, &allowed, sizeof(allowed));
      ::close(event.fd);
    }
  }

  int holds_;  // Negative: we may not.
  int events_;
  std::thread thread_;
};

}  // namespace

namespace {

// The names below the head "SUBCOMMANDS:", where each line begins with one.
std::vector<std::string> subcommands(const std::string& help) {
  std::istringstream lines(help);
  std::vector<std::string> names;
  bool is_there = false;
  for (std::string line; std::getline(lines, line);) {
    if (is_there && line.empty()) break;
    const bool is_name = line.size() > 2 && line.starts_with("  ") && line[2] != ' ';
    if (is_there && is_name) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line.find("ubcommands:") != std::string::npos || line.starts_with("SUBCOMMANDS:"))
      is_there = true;
  }
  return names;
}

// "--dry-run" and the like, of the options that a help text describes.
std::vector<std::string> options_of(const std::string& help) {
  std::istringstream lines(help);
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("--");
    if (!line.starts_with("  ") || at == std::string::npos || at > 6) continue;
    names.push_back(line.substr(at, line.find_first_of(" ,=", at) - at));
  }
  return names;
}

}  // namespace

TEST_CASE("cli: help and version end well, wrong use ends with 2", "[unit][cli]") {
  const Place place;
  const Answer help = place.ckpt("--help");
  CHECK(help.code == 0);
  for (const char* command : {"status", "ls", "verify", "inspect", "export", "diff", "doctor",
                              "recover", "stop", "drop", "gc", "cp", "import", "completion"}) {
    CHECK(Says(help.out)(command));
    const Answer details = place.ckpt(std::string(command) + " --help");
    CHECK(details.code == 0);
    CHECK(Says(details.out)("--json"));
    CHECK(Says(details.out)("Example"));
  }
  std::vector<std::string> pages{"--help"};
  for (const auto& name : subcommands(help.out)) pages.push_back(name + " --help");
  CHECK(pages.size() == 15);
  for (const std::string& page : pages) {
    std::istringstream lines(place.ckpt(page).out);
    for (std::string line; std::getline(lines, line);) {
      INFO(page << ": " << line);
      CHECK(line.size() <= 80);
    }
  }
  CHECK(place.ckpt("--version").code == 0);
  CHECK(place.ckpt("").code == 2);
  CHECK(place.ckpt("stats").code == 2);
  CHECK(place.ckpt("status --colour").code == 2);
  CHECK(Says(place.ckpt("stats").err)("`ckpt --help` lists the commands"));
  CHECK(Says(place.ckpt("status --colour").err)("`ckpt status --help` has its arguments"));
  CHECK(Says(place.ckpt("stats").err)("there is no command \"stats\""));
  CHECK(place.ckpt("status --json --colour").json()["error"]["code"] == "invalid argument");
  CHECK(Says(place.ckpt("ls --bogus").err)("there is no option --bogus"));
  CHECK(Says(place.ckpt("ls --bogus=1 --json").err)("there is no option --bogus; `ckpt ls"));
  CHECK(Says(place.ckpt("ls --json").err)("DIR is required"));
  CHECK(place.ckpt("verify").code == 2);
  CHECK(place.ckpt("drop").code == 2);
  CHECK(place.ckpt("recover gpt2").code == 2);  // Without --dry-run.
  CHECK(place.ckpt("stop --deadline soon" + place.runtime()).code == 2);
  CHECK(place.ckpt("status --runtime-dir relative").code == 2);
}

TEST_CASE("cli: a shell completes commands and options", "[unit][cli]") {
  const Place place;
  const Answer script = place.ckpt("completion bash");
  REQUIRE(script.code == 0);
  const std::string file = place.directory.file("script");
  std::ofstream(file) << script.out;
  // The offers of bash for these words, of which the last one is not complete.
  const auto offered = [&](const std::string& words, int count) {
    const std::string out = place.directory.file("offered");
    const std::string command = "bash -c 'source \"" + file + "\"; COMP_WORDS=(" + words +
                                "); COMP_CWORD=" + std::to_string(count) +
                                "; _ckpt; echo \"${COMPREPLY[@]}\"' >\"" + out + "\"";
    REQUIRE(std::system(command.c_str()) == 0);
    return file_text(out);
  };
  CHECK(offered("ckpt re", 1) == "recover\n");
  CHECK(offered("ckpt gc --keep-b", 2) == "--keep-best\n");
  CHECK(offered("ckpt gc /somewhere --dr", 3) == "--dry-run\n");
  CHECK(offered("ckpt gc /some", 2) == "\n");
  CHECK(offered("ckpt unknown --", 2) == "\n");
  const Answer zsh = place.ckpt("completion zsh");
  for (const std::string& command : subcommands(place.ckpt("--help").out)) {
    const auto options = options_of(place.ckpt(command + " --help").out);
    CHECK(options.size() >= 2);  // --help and --json.
    for (const std::string& option : options) {
      INFO(command << " " << option);
      CHECK(Says(" " + offered("ckpt " + command + " " + option, 2))(" " + option));
      CHECK(Says(zsh.out)("'" + option));
    }
  }
  CHECK(Says(zsh.out)("#compdef ckpt"));
  CHECK(Says(zsh.out)("\'--keep-best:value:_files\'"));
  CHECK(place.ckpt("completion fish").code == 2);
}

TEST_CASE("cli: where no daemon runs, it says so and starts none", "[unit][cli]") {
  const Place place;
  for (const char* command : {"status", "recover --dry-run", "drop gpt2"}) {
    const Answer answer = place.ckpt(command + place.runtime());
    CHECK(answer.code == 1);
    CHECK(answer.out.empty());
    CHECK(Says(answer.err)("no daemon runs"));
    CHECK(Says(answer.err)(place.options.runtime_dir));
  }
  const auto json = place.ckpt("status --json" + place.runtime()).json();
  CHECK(json["error"]["code"] == "not found");
  const Answer stopped = place.ckpt("stop" + place.runtime());
  CHECK(stopped.code == 0);
  CHECK(Says(stopped.out)("No daemon runs"));
  CHECK_FALSE(std::filesystem::exists(place.options.runtime_dir));
}

TEST_CASE("cli: status tells of nodes, ranks, steps and Slots", "[unit][cli]") {
  const Place place;
  Options options = place.options;
  options.flush_rate = 500 * MiB;
  Trainer trainer(options);
  trainer.save(1, Level::committed);
  trainer.save(2, Level::durable);
  trainer.save(3, Level::committed);

  const Answer table = place.ckpt("status" + place.runtime());
  INFO(table.out << table.err);
  CHECK(table.code == 0);
  CHECK(Says(table.out)("job gpt2"));
  CHECK(Says(table.out)("committed step 3"));
  CHECK(Says(table.out)("on storage step 2"));
  CHECK(Says(table.out)("training"));
  CHECK(Says(table.out)("IF IT DIED NOW"));
  CHECK(Says(table.out)("gives way to training: flushes at most 500.0 MiB/s\n"));
  CHECK(Says(table.out)("1 step lost: goes on from step 2, from storage"));

  const auto json = place.ckpt("status --json" + place.runtime()).json();
  CHECK(json["memory"]["budget_bytes"] == 256 * MiB);
  REQUIRE(json["jobs"].size() == 1);
  const auto& job = json["jobs"][0];
  CHECK(job["job"] == "gpt2");
  CHECK(job["directory"] == place.options.dir);
  CHECK(job["degraded"].is_null());
  CHECK(job["ranks_missing"].empty());
  CHECK(job["giving_way"]["flush_rate"] == 500 * MiB);
  CHECK(job["giving_way"]["replica_rate"].is_null());
  CHECK(job["copies_sent"]["bytes"] == 0);
  CHECK(job["copies_sent"]["bytes_unchanged"] == 0);
  CHECK(job["nodes"].size() == 1);
  CHECK(job["ranks"][0]["attached"] == true);
  CHECK(job["ranks"][0]["last_seen"] == 3);
  CHECK(job["slots"].size() == 3);
  CHECK(job["if_node_died"][0]["resumes_from"]["step"] == 2);
  CHECK(job["if_node_died"][0]["steps_lost"] == 1);
  REQUIRE(job["steps"].size() >= 2);
  CHECK(job["steps"][0]["step"] == 3);
  CHECK(job["steps"][0]["level"] == "committed");
  CHECK(job["steps"][0]["ranks_in_memory"] == 1);
  CHECK(job["steps"][1]["step"] == 2);
  CHECK(job["steps"][1]["level"] == "durable");
  CHECK(job["steps"][1]["on_storage"] == true);
}

TEST_CASE("cli: status tells how much of a restore came from storage", "[unit][cli]") {
  const Place place;
  Trainer trainer(place.options);
  trainer.save(2, Level::durable);
  trainer.save(3, Level::committed);
  const auto restored = [&] {
    return place.ckpt("status --json" + place.runtime()).json()["jobs"][0]["ranks"][0]["restored"];
  };
  const auto restore = [&](RestoreRequest request) {
    const auto done = trainer.checkpointer->restore(request);
    if (!done) FAIL(done.error().message());
    return restored();
  };
  CHECK(restored().is_null());  // It began.
  const auto of_memory = restore({});
  CHECK(of_memory["step"] == 3);
  CHECK(of_memory["source"] == "own_memory");
  CHECK(of_memory["bytes_from_storage"] == 0);
  RestoreRequest of_storage;
  of_storage.source = SourceChoice::storage;
  const auto stored = restore(of_storage);
  CHECK(stored["step"] == 2);
  CHECK(stored["source"] == "storage");
  CHECK(stored["bytes"] >= 5 * MiB);
  CHECK(stored["bytes_from_storage"] == stored["bytes"]);
  CHECK(Says(place.ckpt("status" + place.runtime()).out)("step 2 from storage"));
  CHECK(restore({}) == stored);  // The rest of the same restore, as a trainer in parts makes it.
  REQUIRE(trainer.checkpointer->start_fresh());
  CHECK(restored().is_null());
}

TEST_CASE("cli: status names the ranks that nobody trains", "[unit][cli]") {
  Place place;
  place.options.world_size = 3;
  place.options.rank = 1;
  {
    const Trainer alone(place.options);
    const Answer short_of_two = place.ckpt("status" + place.runtime());
    INFO(short_of_two.out);
    CHECK(short_of_two.code == 1);
    CHECK(Says(short_of_two.out)(", 3 ranks\n  committed none, on storage none"));
    CHECK(Says(short_of_two.out)("missing: no trainer of ranks 0, 2\n"));
    CHECK(Says(short_of_two.out)("nothing to lose yet"));
    const auto json = place.ckpt("status --json" + place.runtime()).json();
    CHECK(json["jobs"][0]["ranks_missing"] == nlohmann::json({0, 2}));
  }
  place.until_status(
      [](const auto& status) { return status["jobs"][0]["ranks_missing"].size() == 3; });
  const Answer empty = place.ckpt("status" + place.runtime());
  CHECK(empty.code == 1);
  CHECK(Says(empty.out)("missing: no rank has a trainer\n"));
}

TEST_CASE("cli: a job that was closed in order has nothing to lose", "[unit][cli]") {
  Place place;
  // The job is gone a second after its end, or sooner. This one waits for a last copy: it fails,
  // and is tried again some seconds later.
  const std::string second = place.directory.file("second"), file = place.directory.file("file");
  std::filesystem::create_directories(second);
  std::ofstream(file) << "no directory";
  place.options.dir += ", " + second + " every 1000";
  Trainer trainer(place.options);
  trainer.save(3, Level::committed);
  REQUIRE(::renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0);
  // Its next step is due and not saved: there are no Slots yet for what was added.
  std::vector<float> more(6 * MiB / sizeof(float));
  TensorRef tensor;
  tensor.data = more.data();
  tensor.dtype = DType::f32;
  tensor.shape = {static_cast<std::int64_t>(more.size())};
  REQUIRE(trainer.checkpointer->add("more", tensor));
  REQUIRE(::kill(place.daemon(), SIGSTOP) == 0);
  const auto skipped = trainer.checkpointer->save(Step{7});
  REQUIRE(::kill(place.daemon(), SIGCONT) == 0);
  REQUIRE(skipped);
  REQUIRE(*skipped == SaveOutcome::skipped_unavailable);
  REQUIRE(trainer.checkpointer->close(patience));

  const Answer closed = place.ckpt("status" + place.runtime());
  INFO(closed.out);
  CHECK(closed.code == 1);  // For that copy alone.
  CHECK(Says(closed.out)("nothing: it has ended, with step 3, from storage"));
  CHECK_FALSE(Says(closed.out)("lost"));
  const auto json = place.ckpt("status --json" + place.runtime()).json();
  CHECK(json["jobs"][0]["if_node_died"][0]["steps_lost"] == 0);
  CHECK(json["jobs"][0]["ranks"][0]["last_seen"] == 7);
}

TEST_CASE("cli: recover explains, drop frees, stop ends", "[unit][cli]") {
  const Place place;
  {
    Trainer trainer(place.options);
    trainer.save(7, Level::committed);
    const Answer busy = place.ckpt("drop gpt2" + place.runtime());
    CHECK(busy.code == 1);
    CHECK(Says(busy.err)("a trainer is attached"));
  }
  const Answer explained = place.ckpt("recover --dry-run" + place.runtime());
  INFO(explained.out << explained.err);
  CHECK(explained.code == 0);
  CHECK(Says(explained.out)("would choose step 7"));
  CHECK(Says(explained.out)("chosen: every shard is in memory"));
  const auto json = place.ckpt("recover --dry-run gpt2 --json" + place.runtime()).json();
  CHECK(json["jobs"][0]["chosen"]["step"] == 7);
  const Answer unknown = place.ckpt("recover --dry-run bert" + place.runtime());
  CHECK(unknown.code == 1);
  CHECK(Says(unknown.err)("job bert"));

  const Answer dropped = place.ckpt("drop gpt2" + place.runtime());
  INFO(dropped.err);
  CHECK(dropped.code == 0);
  CHECK(place.ckpt("status --json" + place.runtime()).json()["jobs"].empty());
  const Answer again = place.ckpt("drop gpt2" + place.runtime());
  CHECK(again.code == 1);
  CHECK(Says(again.err)("holds nothing of it"));

  const Answer stopped = place.ckpt("stop --json" + place.runtime());
  INFO(stopped.err);
  CHECK(stopped.code == 0);
  CHECK(stopped.json()["stopped"] == true);
  CHECK_FALSE(std::filesystem::exists(place.options.runtime_dir + "/ckptd.sock"));
  CHECK(place.ckpt("status" + place.runtime()).code == 1);
}

TEST_CASE("cli: stop says whose trainer still runs", "[unit][cli]") {
  const Place place;
  Trainer trainer(place.options);
  trainer.save(5, Level::durable);
  const Answer stopped = place.ckpt("stop" + place.runtime());
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  CHECK(Says(stopped.out)("step 5 is on storage; its trainer still runs"));
}

TEST_CASE("cli: stop says which step the second place has", "[unit][cli]") {
  Place place;
  const std::string second = place.directory.file("second");
  std::filesystem::create_directories(second);
  place.options.dir += ", " + second + " every 1000";
  Trainer trainer(place.options);
  trainer.save(5, Level::durable);  // The first one is copied.
  place.until_status([](const auto& status) {
    const auto& copies = status["jobs"][0]["second_place"];
    return copies["copying"].is_null() && !copies["newest"].is_null();
  });
  const bool is_behind = GENERATE(false, true);
  if (is_behind) trainer.save(6, Level::durable);
  const Answer stopped = place.ckpt("stop" + place.runtime());
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  const std::string told =
      is_behind ? "step 6 is on storage; the second place " + second +
                      " has step 5, and gets newer ones when the job runs again; its trainer"
                : "step 5 is on storage, and in the second place " + second + "; its trainer";
  CHECK(Says(stopped.out)(told));
}

TEST_CASE("cli: stop flushes what is in memory only", "[unit][cli]") {
  Place place;
  place.options.save_storage_interval = Interval{1000, {}};
  {
    Trainer trainer(place.options);
    trainer.save(5, Level::committed);
  }
  CHECK(Says(place.ckpt("ls '" + place.options.dir + "'").out)("No checkpoint in"));
  const Answer stopped = place.ckpt("stop" + place.runtime());
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  CHECK_FALSE(Says(stopped.out)("its trainer still runs"));
  const auto json = place.ckpt("ls --json '" + place.options.dir + "'").json();
  CHECK(json["newest"] == "step-000000005");
}

TEST_CASE("cli: stop on storage that takes no more says why, and the daemon goes on",
          "[unit][cli]") {
  Place place;
  place.options.save_storage_interval = Interval{1000, {}};
  Trainer trainer(place.options);
  trainer.save(5, Level::committed);
  // A write beyond it fails, and the signal that comes with it is survived.
  place.limit_file_size(64 * KiB);
  const Answer refused = place.ckpt("stop" + place.runtime());
  INFO(refused.out << refused.err);
  CHECK(refused.code == 1);
  CHECK(Says(refused.err)("the daemon goes on"));
  CHECK(Says(refused.err)("step 5 is not durable"));
  CHECK(Says(refused.err)("File too large"));
  CHECK(Says(refused.err)("--no-flush"));
  CHECK(Says(place.ckpt("status" + place.runtime()).out)("committed step 5"));
  trainer.save(6, Level::committed);

  place.limit_file_size(RLIM_INFINITY);
  trainer.checkpointer.reset();  // Else it would start the next daemon.
  const Answer stopped = place.ckpt("stop" + place.runtime());
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  CHECK(Says(stopped.out)("step 6 is on storage"));
  CHECK(place.ckpt("ls --json '" + place.options.dir + "'").json()["newest"] == "step-000000006");
}

TEST_CASE("cli: stop without a flush ends a flush that is under way", "[unit][cli]") {
  Place place;
  place.options.save_storage_interval = Interval{1000, {}};
  Trainer trainer(place.options);
  trainer.save(5, Level::committed);
  place.limit_file_size(64 * KiB);
  trainer.checkpointer.reset();  // Else it would start the next daemon.
  auto flushes = std::async(std::launch::async,
                            [&] { return place.ckpt("stop" + place.runtime(), "", "first-"); });
  place.until_status([](const auto& status) { return status["daemon"]["is_ending"] == true; });
  const Answer stopped = place.ckpt("stop --no-flush" + place.runtime());
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  CHECK(Says(stopped.out)("The daemon has ended, without a flush"));
  CHECK(Says(stopped.out)("step 5 was in memory only, and is lost"));
  const Answer first = flushes.get();
  INFO(first.out << first.err);
  CHECK(first.code == 0);
  CHECK(Says(first.out)("The daemon has ended, and flushed what could be flushed"));
  CHECK(Says(first.out)("step 5 was in memory only, and is lost"));
}

TEST_CASE("cli: a daemon whose socket was removed is found all the same", "[unit][cli]") {
  const Place place;
  Trainer trainer(place.options);
  trainer.save(5, Level::committed);
  const std::string socket = place.options.runtime_dir + "/ckptd.sock";
  REQUIRE(std::filesystem::remove(socket));
  const Answer found = place.ckpt("status" + place.runtime());
  INFO(found.err);
  CHECK(found.code == 0);
  CHECK(Says(found.out)("committed step 5"));
  CHECK(std::filesystem::exists(socket));
  REQUIRE(std::filesystem::remove(socket));
  trainer.checkpointer.reset();  // Else it would start the next daemon.
  CHECK(place.ckpt("stop" + place.runtime()).code == 0);
  CHECK(place.ckpt("ls --json '" + place.options.dir + "'").json()["newest"] == "step-000000005");
}

TEST_CASE("cli: a daemon that lives and does not listen is not called none", "[unit][cli]") {
  const Place place;
  const auto runtime = os::RuntimeDirectory::open(place.options.runtime_dir);
  REQUIRE(runtime);
  const auto lock = os::LockFile::acquire(runtime->lock());
  REQUIRE(lock);
  const Answer answer = place.ckpt("stop" + place.runtime());
  CHECK(answer.code == 1);
  CHECK(Says(answer.err)("a daemon holds " + runtime->lock()));
  CHECK(Says(answer.err)(runtime->socket()));
}

TEST_CASE("cli: a daemon that is stopped is named with what lets it go on", "[unit][cli]") {
  const Place place;
  const Trainer trainer(place.options);
  const pid_t pid = place.daemon();
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  const Answer answer = place.ckpt("status" + place.runtime());
  INFO(answer.err);
  CHECK(answer.code == 1);
  CHECK(Says(answer.err)("pid " + std::to_string(pid) + ", which is stopped"));
  CHECK(Says(answer.err)("`kill -CONT " + std::to_string(pid) + "`"));
}

TEST_CASE("cli: stop says what was in memory only", "[unit][cli]") {
  Place place;
  place.options.save_storage_interval = Interval{1000, {}};
  SECTION("without a flush") {
    Trainer trainer(place.options);
    trainer.save(5, Level::committed);
    trainer.checkpointer.reset();  // Else it would start the next daemon.
    const Answer stopped = place.ckpt("stop --no-flush" + place.runtime());
    CHECK(stopped.code == 0);
    CHECK(Says(stopped.out)("step 5 was in memory only, and is lost"));
  }
  SECTION("of a job without a directory") {
    place.options.dir.clear();
    place.options.save_storage_interval = Interval{};
    Trainer trainer(place.options);
    trainer.save(5, Level::committed);
    trainer.checkpointer.reset();  // Else it would start the next daemon.
    const Answer stopped = place.ckpt("stop" + place.runtime());
    CHECK(stopped.code == 0);  // A framework may have the job's checkpoints in folders of its own.
    CHECK_FALSE(Says(stopped.out)("has flushed what it held"));
    CHECK(Says(stopped.out)("step 5 was in memory only, and is lost (the job has no directory)"));
  }
}

TEST_CASE("cli: ls and verify need no daemon, and name the chunk that is damaged", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  {
    Trainer trainer(place.options);
    trainer.save(2, Level::durable);
    trainer.save(4, Level::durable);
  }
  REQUIRE(place.ckpt("stop" + place.runtime()).code == 0);

  const Answer listed = place.ckpt("ls " + dir);
  INFO(listed.out << listed.err);
  CHECK(listed.code == 0);
  CHECK(Says(listed.out)("step-000000002"));
  CHECK(Says(listed.out)("step-000000004"));
  const auto json = place.ckpt("ls --json " + dir).json();
  CHECK(json["checkpoints"].size() == 2);
  CHECK(json["checkpoints"][1]["job"] == "gpt2");
  CHECK(json["newest"] == "step-000000004");

  CHECK(place.ckpt("verify " + dir).code == 0);
  CHECK(place.ckpt("verify " + dir + "/step-000000004/").code == 0);
  CHECK(place.ckpt("verify --json " + dir).json()["good"] == true);

  // 4.5 MiB into the file: behind the first chunk.
  flip_a_byte(place.options.dir + "/step-000000004/rank-00000.safetensors", 4608 * 1024);
  const Answer damaged = place.ckpt("verify " + dir);
  INFO(damaged.out << damaged.err);
  CHECK(damaged.code == 1);
  CHECK(Says(damaged.out)("DAMAGED " + place.options.dir + "/step-000000004"));
  CHECK(Says(damaged.out)("rank-00000.safetensors"));
  CHECK(Says(damaged.out)("chunk 1"));
  CHECK(place.ckpt("verify " + dir + "/step-000000002").code == 0);
  CHECK(place.ckpt("verify --newest " + dir).code == 1);
  const auto told = place.ckpt("verify --json " + dir).json();
  CHECK(told["good"] == false);
  CHECK(told["checkpoints"][1]["files"][0]["good"] == false);

  flip_a_byte(place.options.dir + "/step-000000002/manifest.json", 100);
  CHECK(place.ckpt("ls " + dir).code == 1);
  const Answer manifest = place.ckpt("verify " + dir + "/step-000000002");
  CHECK(manifest.code == 1);
  CHECK(Says(manifest.out)("manifest.json"));
}

TEST_CASE("cli: ls marks what a restore has abandoned, and no newest is among it", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  {
    Trainer trainer(place.options);
    trainer.save(2, Level::durable);
    trainer.save(4, Level::durable);
  }
  {
    Trainer trainer(place.options);
    const auto restored = trainer.checkpointer->restore({.step = Step{2}});
    if (!restored) FAIL(restored.error().message());
    REQUIRE(restored->step == Step{2});
  }
  REQUIRE(place.ckpt("stop --no-flush" + place.runtime()).code == 0);

  const Answer listed = place.ckpt("ls " + dir);
  INFO(listed.out << listed.err);
  CHECK(listed.code == 0);
  CHECK(Says(listed.out)("abandoned"));
  const auto json = place.ckpt("ls --json " + dir).json();
  CHECK(json["newest"] == "step-000000002");
  CHECK(json["checkpoints"][0]["abandoned"] == false);
  CHECK(json["checkpoints"][1]["abandoned"] == true);
  const auto verified = place.ckpt("verify --newest --json " + dir).json();
  REQUIRE(verified["checkpoints"].size() == 1);
  CHECK(Says(verified["checkpoints"][0].dump())("step-000000002"));
}

TEST_CASE("cli: files beside the checkpoints are looked at too", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  {
    Trainer trainer(place.options);
    trainer.save(2, Level::durable);
    trainer.save(4, Level::durable);
  }
  REQUIRE(place.ckpt("stop" + place.runtime()).code == 0);
  REQUIRE(place.ckpt("ls " + dir).code == 0);
  const auto both_find = [&](const std::string& part) {
    for (const char* command : {"ls ", "verify "}) {
      const Answer answer = place.ckpt(command + dir);
      INFO(command << answer.out << answer.err);
      CHECK(answer.code == 1);
      CHECK(Says(answer.out)(part));
      // A verdict names the whole path, since there may be several runs.
      const bool is_named = Says(answer.out)("DAMAGED " + place.options.dir + "/");
      CHECK(is_named == (std::string(command) == "verify "));
    }
  };
  for (const char* name : {".libckpt/run.json", ".libckpt/timelines.json", "latest"}) {
    const std::string path = place.options.dir + "/" + name;
    flip_a_byte(path, 5);
    both_find(name + std::string(": "));
    flip_a_byte(path, 5);
  }
  REQUIRE(place.ckpt("verify " + dir).code == 0);
  const std::string hidden = place.options.dir + "/.libckpt";
  std::filesystem::rename(hidden + "/timelines.json", hidden + "/aside");
  both_find(".libckpt/timelines.json: it is missing");
  std::filesystem::remove_all(hidden);
  both_find("2 checkpoints (step-000000002 to step-000000004, of job \"gpt2\")");
  both_find("copy it along");

  // And a trainer gets the same answer, before it could begin anew.
  const auto refused = Checkpointer::open(place.options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::corruption);
  CHECK(Says(refused.error().text())("step-000000002 to step-000000004"));
}

TEST_CASE("cli: a running job's changes meanwhile are no damage", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  {
    Trainer trainer(place.options);
    for (const std::uint64_t step : {2, 4, 6}) trainer.save(step, Level::durable);
  }
  REQUIRE(place.ckpt("stop" + place.runtime()).code == 0);
  const auto at = [&](const std::string& name) { return place.options.dir + "/" + name; };
  const auto move = [&](const std::string& from, const std::string& to) {
    std::filesystem::rename(at(from), at(to));
  };
  SECTION("verify: a step is removed when the steps were listed, and one before it is read") {
    for (const char* command : {"verify ", "verify --json "}) {
      OnceOpened removal(at("step-000000002/rank-00000.safetensors"),
                         [&] { move("step-000000004", ".gone"); });
      const Answer answer = place.ckpt(command + dir);
      INFO(answer.out << answer.err);
      CHECK(answer.code == 0);
      CHECK(Says(answer.out)("step-000000006"));
      CHECK_FALSE(Says(answer.out)("DAMAGED"));
      removal.finish();
      move(".gone", "step-000000004");
    }
  }
  SECTION("ls: a step is published when the steps were listed") {
    move("step-000000006", ".next");
    const OnceOpened publication(at(".libckpt/run.json"), [&] { move(".next", "step-000000006"); });
    const Answer answer = place.ckpt("ls " + dir);
    INFO(answer.out << answer.err);
    CHECK(answer.code == 0);
    CHECK_FALSE(Says(answer.out)("DAMAGED"));
  }
}

TEST_CASE("cli: a directory whose marker is no file is damaged", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  {
    Trainer trainer(place.options);
    trainer.save(2, Level::durable);
  }
  REQUIRE(place.ckpt("stop" + place.runtime()).code == 0);
  REQUIRE(place.ckpt("ls " + dir).code == 0);
  const std::string hidden = place.options.dir + "/.libckpt";
  const std::string marker = hidden + "/run.json";
  std::filesystem::rename(marker, hidden + "/aside");
  const char* what = "a directory";
  SECTION("a directory") {
    std::filesystem::create_directory(marker);
  }
  SECTION("a pipe") {
    what = "a pipe";
    REQUIRE(::mkfifo(marker.c_str(), 0600) == 0);
  }
  SECTION("below a file") {
    what = "below a file";
    std::filesystem::remove_all(hidden);
    std::ofstream(hidden) << "not ours";
  }
  for (const char* command : {"ls ", "verify "}) {
    const Answer answer = place.ckpt(command + dir);
    INFO(what << ", " << command << answer.out << answer.err);
    CHECK(answer.code == 1);
    CHECK(Says(answer.out)("DAMAGED "));
    CHECK(Says(answer.out)(".libckpt/run.json: "));
  }
  CHECK_FALSE(Checkpointer::open(place.options));
}

TEST_CASE("cli: a directory that is not there is named", "[unit][cli]") {
  const Place place;
  const std::string missing = place.directory.file("missing");
  for (const char* command : {"ls ", "verify "}) {
    const Answer answer = place.ckpt(command + missing);
    CHECK(answer.code == 1);
    CHECK(Says(answer.err)(missing));
    CHECK(Says(answer.err)("there is no such directory"));
  }
  const auto json = place.ckpt("verify --json " + missing).json();
  CHECK(json["error"]["code"] == "not found");
  CHECK(place.ckpt("ls '" + place.options.dir + "'").code == 1);
  CHECK(place.ckpt("verify '" + place.options.dir + "'").code == 1);
}

// Steps 2 and 4, which differ in one element; no daemon any more.
void store_two_steps(const Place& place) {
  {
    Trainer trainer(place.options);
    trainer.save(2, Level::durable);
    trainer.weights[7] += 0.25f;
    trainer.save(4, Level::durable);
  }
  REQUIRE(place.ckpt("stop" + place.runtime()).code == 0);
}

TEST_CASE("cli: inspect, export and diff read the newest whole checkpoint", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  store_two_steps(place);

  const Answer seen = place.ckpt("inspect " + dir);
  INFO(seen.out << seen.err);
  CHECK(seen.code == 0);
  CHECK(Says(seen.out)("step 4 of job gpt2, 1 rank: 1 tensor, 5.0 MiB"));
  CHECK(Says(seen.out)("weights  F32   [1310720]"));
  const auto json = place.ckpt("inspect --json " + dir + "/step-000000002/").json();
  CHECK(json["step"] == 2);
  CHECK(json["tensors"][0]["shape"][0] == 1310720);
  CHECK(json["tensors"][0]["parts"][0]["rank"] == 0);
  CHECK(place.ckpt("inspect --names 'x*' " + dir).code == 1);
  CHECK(Says(place.ckpt("inspect " + dir, "COLUMNS=30").out)("\nweights\n    F32 "));

  const std::string out = place.directory.file("model.safetensors");
  const Answer first = place.ckpt("export " + dir + " '" + out + "'");
  INFO(first.out << first.err);
  CHECK(first.code == 0);
  CHECK(Says(first.out)("1 tensor, 5.0 MiB"));
  CHECK(first.err.empty());
  CHECK(std::filesystem::file_size(out) > 5 * MiB);
  CHECK(place.ckpt("export " + dir + " '" + out + "'").code == 2);
  CHECK(place.ckpt("export --force " + dir + " '" + out + "'").code == 0);
  CHECK(place.ckpt("export --format zip " + dir + " '" + out + "'").code == 2);
  for (const std::string wrong : {"--rank 1 ", "--max-shard-size 0 "})
    CHECK(place.ckpt("export " + wrong + dir + " '" + out + "'").code == 2);
  const std::string folder = place.directory.file("hf");
  const auto told = place.ckpt("export --json --format hf " + dir + " '" + folder + "/'").json();
  CHECK(told["files"][0]["path"] == folder + "/model.safetensors");
  CHECK(told["index"].is_null());

  const Answer other = place.ckpt("diff " + dir + "/step-000000002 " + dir);
  INFO(other.out << other.err);
  CHECK(other.code == 1);
  CHECK(Says(other.out)("1 of 1310720 F32, by 0.25 at most"));
  const auto found = place.ckpt("diff --json " + dir + "/step-000000002 " + dir).json();
  CHECK(found["equal"] == false);
  CHECK(found["differences"][0]["max_difference"] == 0.25);
  const Answer same = place.ckpt("diff " + dir + " " + dir);
  CHECK(same.code == 0);
  CHECK(Says(same.out)("all the same"));
  for (const char* command : {"inspect ", "diff . "})
    CHECK(place.ckpt(command + place.directory.file("missing")).code == 1);
}

TEST_CASE("cli: a step in memory is inspected, exported, compared and copied", "[unit][cli]") {
  Place place;
  place.options.dir.clear();
  place.options.save_storage_interval = Options().save_storage_interval;
  const std::string there = place.directory.file("there"), out = place.directory.file("model");
  {
    Trainer trainer(place.options);
    trainer.save(4, Level::committed);
    const Answer seen = place.ckpt("inspect memory:gpt2" + place.runtime());
    CHECK(seen.code == 0);
    CHECK(Says(seen.out)("step 4 of job gpt2, 1 rank: 1 tensor, 5.0 MiB"));
    REQUIRE(place.ckpt("export memory:gpt2 " + out + place.runtime()).code == 0);
    CHECK(std::filesystem::file_size(out) > 5 * MiB);
    REQUIRE(place.ckpt("cp memory:gpt2 " + there + place.runtime()).code == 0);
    CHECK(place.ckpt("verify " + there).code == 0);
    CHECK(Says(place.ckpt("cp memory:gpt2 " + there + place.runtime()).out)("there already"));
    CHECK(place.ckpt("diff memory:gpt2/step-000000004 " + there + place.runtime()).code == 0);
  }
  REQUIRE(place.ckpt("stop --no-flush" + place.runtime()).code == 0);
  Trainer other(place.options);
  other.weights.assign(other.weights.size(), 2.5f);
  other.save(4, Level::committed);
  const Answer refused = place.ckpt("cp memory:gpt2 " + there + place.runtime());
  INFO(refused.err);
  CHECK(refused.code == 2);
  CHECK(Says(refused.err)("another checkpoint is there"));
  CHECK(place.ckpt("diff memory:gpt2 " + there + place.runtime()).code == 1);
}

TEST_CASE("cli: export and diff pass over a damaged checkpoint of a run", "[unit][cli]") {
  const Place place;
  const std::string dir = "'" + place.options.dir + "'";
  const std::string out = place.directory.file("model.safetensors");
  store_two_steps(place);
  flip_a_byte(place.options.dir + "/step-000000004/rank-00000.safetensors", 4608 * 1024);
  CHECK(place.ckpt("inspect " + dir).code == 0);
  const std::string newest = dir + "/step-000000004", older = dir + "/step-000000002";
  const auto forced = [&](const std::string& from) {
    return "export --force " + from + " '" + out + "'";
  };
  for (const std::string& command : {forced(newest), "diff " + newest + " " + older}) {
    const Answer damaged = place.ckpt(command);
    CHECK(damaged.code == 1);
    CHECK(Says(damaged.err)("rank-00000.safetensors: chunk 1"));
  }
  // For a run the next good one serves, one line says why, and a script sees that it is older.
  for (const std::string& command : {forced(dir), "diff " + dir + " " + older}) {
    const Answer passed = place.ckpt(command);
    CHECK(passed.code == 1);
    CHECK(Says(passed.out)("This is not the newest step"));
    CHECK(Says(passed.err)("step-000000002; passed over: "));
    CHECK(Says(passed.err)("rank-00000.safetensors: chunk 1"));
  }
}

TEST_CASE("cli: doctor finds what will not work, and where options come from", "[unit][cli]") {
  const Place place;
  const std::string here = " --dir '" + place.options.dir + "'" + place.runtime();
  const Answer well = place.ckpt("doctor" + here, "LIBCKPT_MEMORY_BUDGET=16MiB");
  INFO(well.out << well.err);
  CHECK(Says(well.out)("locked memory"));
  CHECK(Says(well.out)("environment LIBCKPT_MEMORY_BUDGET"));
  CHECK(std::filesystem::is_empty(place.options.dir));

  const auto json = place.ckpt("doctor --json" + here, "LIBCKPT_MEMORY_BUDGET=16MiB").json();
  CHECK(grade(json, "options") == "good");
  CHECK(grade(json, "memory") == "good");
  CHECK(grade(json, "daemon") == "good");
  CHECK(grade(json, "port") == "good");
  CHECK(grade(json, "landlock") == "good");
  CHECK(grade(json, "locked memory") != "missing");
  CHECK(grade(json, "GPUs") != "missing");
  CHECK(json["options"].size() > 20);

  const std::string later = " --dir '" + place.options.dir + "/run'" + place.runtime();
  CHECK(grade(place.ckpt("doctor --json" + later).json(), "storage") == "note");
  CHECK(std::filesystem::is_empty(place.options.dir));

  const Answer broken = place.ckpt("doctor --json --dir /nonexistent/run" + place.runtime(),
                                   "LIBCKPT_MEMORY_BUDGET=900TiB "
                                   "LIBCKPT_NODES=A@127.0.0.1:7711,B@127.0.0.2:7711 "
                                   "LIBCKPT_WORLD_SIZE=2 LIBCKPT_NODE=A");
  CHECK(broken.code == 1);
  const auto told = broken.json();
  CHECK(told["good"] == false);
  CHECK(grade(told, "memory") == "trouble");
  CHECK(grade(told, "storage") == "trouble");
  CHECK(grade(told, "secret") == "trouble");

  // 192.0.2.0/24 is for documents: no machine has an address of it.
  const auto elsewhere = place.ckpt("doctor --json" + here,
                                    "LIBCKPT_NODES=A@192.0.2.1:7711,B@127.0.0.2:7711 "
                                    "LIBCKPT_WORLD_SIZE=2 LIBCKPT_NODE=A");
  CHECK(grade(elsewhere.json(), "port") == "trouble");
}

TEST_CASE("cli: doctor and status say where a confined daemon changes files", "[unit][cli]") {
  if (os::landlock_version() < os::landlock_version_wanted) {
    WARN("left out: this kernel has no Landlock of version 2");
    return;
  }
  const Place place;
  const std::string& dir = place.options.dir;
  const std::string here = " --json --dir '" + dir + "/run'" + place.runtime();
  const auto text = [](const nlohmann::json& told) { return member(told, "landlock", "text"); };
  const std::string setting = "LIBCKPT_CONFINE_TO='" + dir + "'";
  CHECK(Says(text(place.ckpt("doctor" + here).json()))("would not be confined"));
  const auto before = place.ckpt("doctor" + here, setting).json();
  CHECK(grade(before, "landlock") == "good");
  CHECK(Says(text(before))("a daemon that is started here changes files only below " + dir));
  const auto missing =
      place.ckpt("doctor" + here, "LIBCKPT_CONFINE_TO='" + dir + "," + dir + "/gone'").json();
  CHECK(grade(missing, "landlock") == "trouble");
  CHECK(Says(text(missing))(dir + "/gone is no directory"));
  // The place that a link leads to counts.
  std::filesystem::create_directory_symlink(place.directory.path(), dir + "/out");
  for (const std::string& other : {place.directory.file("other"), dir + "/out/other", dir + "2"}) {
    const auto outside =
        place.ckpt("doctor --json --dir '" + other + "'" + place.runtime(), setting).json();
    CHECK(grade(outside, "landlock") == "trouble");
    CHECK(Says(text(outside))(other + " lies outside"));
  }

  ::setenv("LIBCKPT_CONFINE_TO", dir.c_str(), 1);
  Options options = place.options;
  options.dir = dir + "/run";
  const Trainer trainer(options);
  ::unsetenv("LIBCKPT_CONFINE_TO");
  const auto after = place.ckpt("doctor" + here).json();
  CHECK(grade(after, "landlock") == "good");
  CHECK(Says(text(after))("the daemon changes files only below " + dir));
  CHECK(Says(place.ckpt("status" + place.runtime()).out)("changes files only below " + dir));
}

TEST_CASE("cli: doctor tries the port where the daemon would listen", "[unit][cli]") {
  const Place place;
  // 192.0.2.0/24 is for documents: no machine has an address of it.
  const auto port = [&](const std::string& address, const std::string& environment) {
    const std::string job = "LIBCKPT_WORLD_SIZE=2 LIBCKPT_NODE=A LIBCKPT_NODES=A@" + address +
                            ",B@127.0.0.2:7711 " + environment;
    const auto told = place.ckpt("doctor --json" + place.runtime(), job).json();
    return member(told, "port", "grade") + ": " + member(told, "port", "text");
  };
  // A port that nobody listens on now: each test has its own.
  const std::string own = std::to_string(20'000 + ::getpid() % 10'000);
  const std::string other = std::to_string(30'000 + ::getpid() % 2'000);
  CHECK(port("127.0.0.1:" + own, "") == "good: 127.0.0.1:" + own + " is free");
  CHECK(port("192.0.2.1:" + own, "LIBCKPT_INTERFACE=127.0.0.1") ==
        "good: 127.0.0.1:" + own + " is free");
  CHECK(port("127.0.0.1:" + own, "LIBCKPT_PORT=" + other) ==
        "good: 127.0.0.1:" + other + " is free");
  const std::string elsewhere = port("127.0.0.1:" + own, "LIBCKPT_INTERFACE=192.0.2.1");
  CHECK(elsewhere.starts_with("trouble: "));
  CHECK(Says(elsewhere)("192.0.2.1:" + own));
  // The daemon reads its environment; its trainer's options go over it.
  CHECK(port("127.0.0.1:" + own, "LIBCKPT_LISTEN=192.0.2.1:7711").starts_with("trouble: "));
  CHECK(port("127.0.0.1:" + own, "LIBCKPT_LISTEN=192.0.2.1:7711 LIBCKPT_PORT=" + other) ==
        "good: 127.0.0.1:" + other + " is free");
  // An engine that is embedded listens as the job says.
  CHECK(port("127.0.0.1:" + own, "LIBCKPT_INTERFACE=192.0.2.1 LIBCKPT_EMBEDDED=true") ==
        "good: 127.0.0.1:" + own + " is free");
}

TEST_CASE("cli: doctor refuses the options that open refuses", "[unit][cli]") {
  const Place place;
  const auto told = [&](const std::string& environment) {
    return place.ckpt("doctor --json" + place.runtime(), environment).json();
  };
  CHECK(grade(told("LIBCKPT_JOB=a"), "options") == "good");
  const auto job = told("LIBCKPT_JOB=a/b");
  CHECK(job["good"] == false);
  CHECK(grade(job, "options") == "trouble");
  CHECK(Says(member(job, "options", "text"))("option job = \"a/b\" (environment LIBCKPT_JOB)"));

  const std::string log = place.directory.file("trainer.log");
  CHECK(grade(told("LIBCKPT_LOG_FILE_PATH=" + log), "log") == "good");
  CHECK_FALSE(std::filesystem::exists(log));
  CHECK(grade(told("LIBCKPT_LOG_FILE_PATH=" + log + "/of/nobody"), "log") == "trouble");
  CHECK(grade(told("LIBCKPT_LOG_FILE_PATH=" + place.options.dir), "log") == "trouble");

  const auto daemon = told("LIBCKPT_IDLE_LIMIT=soon");
  CHECK(grade(daemon, "program") == "trouble");
  CHECK(Says(member(daemon, "program", "text"))("\"soon\""));
}

TEST_CASE("cli: doctor says with what the daemon dies", "[unit][cli]") {
  const Place place;
  // A daemon is where its trainer is: here.
  const auto here = os::read_file("/proc/self/cgroup", 65536);
  REQUIRE(here);
  const cli::Cgroup group = cli::parse_cgroup(*here, cli::is_in_container("self"));
  const auto expected = [&](const std::string& who) {
    return group.dies_with.empty()
               ? who + " is in " + group.path + ", and dies with nothing else"
               : who + " dies with " + group.dies_with + "; it is in " + group.path;
  };
  const auto before = place.ckpt("doctor --json" + place.runtime()).json();
  CHECK(member(before, "cgroup", "text") == expected("a daemon that is started here"));
  CHECK(grade(before, "cgroup") == (group.dies_with.empty() ? "good" : "note"));
  CHECK(member(before, "cgroup", "advice") == group.advice);
  const Trainer trainer(place.options);
  const auto told = place.ckpt("doctor --json" + place.runtime()).json();
  CHECK(member(told, "cgroup", "text") == expected("the daemon"));
  const auto embedded = place.ckpt("doctor --json" + place.runtime(), "LIBCKPT_EMBEDDED=true");
  CHECK(member(embedded.json(), "cgroup", "text") == "embedded: no daemon is started");
}

}  // namespace ckpt
