// Goal:   ranks in processes of their own get one rank's bytes; whichever of them is killed,
// stopped
//         or late, the others' calls end at their deadlines, and they go on with one another.
// Method: nccl_rank carries out words of the test; real processes and SIGKILL, on the stand-ins for
//         the driver and for NCCL.
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ckpt::test {

using Catch::StartsWith;

namespace {

constexpr int long_enough_ms = 60'000;  // Only a hang reaches it.
constexpr int brief_ms = 200;           // It passes while others do not come.

class Rank {
 public:
  Rank() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      ::dup2(ends[1], STDIN_FILENO);
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(CKPT_NCCL_RANK, CKPT_NCCL_RANK, nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    channel_ = ends[0];
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    signal(SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::close(channel_);
  }

  void signal(int number) const { ::kill(process_, number); }
  void begin(const std::string& words) const {
    const std::string line = words + "\n";
    REQUIRE(::send(channel_, line.data(), line.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(line.size()));
  }
  // Reads that of the oldest line without one. Empty: it is dead.
  std::string answer() {
    std::string line;
    char letter = 0;
    while (::read(channel_, &letter, 1) == 1 && letter != '\n') line += letter;
    return line;
  }
  std::string ask(const std::string& words) {
    begin(words);
    return answer();
  }

 private:
  pid_t process_ = -1;
  int channel_ = -1;
};

class Ranks {
 public:
  explicit Ranks(std::size_t count) {
    for (std::size_t rank = 0; rank < count; ++rank) all_.push_back(std::make_unique<Rank>());
  }
  Rank& operator[](std::size_t rank) { return *all_[rank]; }
  void lose(std::size_t rank) { all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(rank)); }

  // Their answers, from all of them at once.
  std::vector<std::string> ask(const std::string& words) {
    for (const auto& rank : all_) rank->begin(words);
    std::vector<std::string> answers;
    for (const auto& rank : all_) answers.push_back(rank->answer());
    return answers;
  }
  std::string word_to_join(std::size_t rank, const std::string& id, int milliseconds) const {
    return fmt::format("join {} {} {} {}", rank, all_.size(), id, milliseconds);
  }
  void join() {
    const std::string id = all_[0]->ask("id");
    for (std::size_t rank = 0; rank < all_.size(); ++rank)
      all_[rank]->begin(word_to_join(rank, id, long_enough_ms));
    for (const auto& rank : all_) REQUIRE(rank->answer() == "ok");
  }
  std::vector<std::string> all(const std::string& answer) const {
    return std::vector(all_.size(), answer);
  }
  void check_sound() {
    CHECK(ask("quiet") == all("yes"));
    CHECK(ask("violations") == all(""));
  }

 private:
  std::vector<std::unique_ptr<Rank>> all_;
};

}  // namespace

TEST_CASE("nccl processes: all have the bytes of one, from one after the other", "[unit][device]") {
  Ranks ranks(3);
  ranks.join();
  for (const int root : {1, 1, 0}) {
    CHECK(ranks.ask(fmt::format("broadcast {} {}", root, long_enough_ms)) == ranks.all("ok"));
    CHECK(ranks.ask("has 1") == ranks.all("yes"));  // Rank 0 has that, too.
  }
  CHECK(ranks.ask("close 60000") == ranks.all("ok"));
  ranks.check_sound();
}

TEST_CASE("nccl processes: a rank that is late is waited for", "[unit][device]") {
  Ranks ranks(2);
  const std::string id = ranks[1].ask("id");
  ranks[0].begin(ranks.word_to_join(0, id, long_enough_ms));
  REQUIRE(ranks[1].ask(ranks.word_to_join(1, id, long_enough_ms)) == "ok");
  REQUIRE(ranks[0].answer() == "ok");
  const std::string send = fmt::format("broadcast 1 {}", long_enough_ms);
  ranks[0].begin(send);
  ranks[1].signal(SIGSTOP);
  ranks[1].begin(send);
  ranks[1].signal(SIGCONT);
  CHECK(ranks[1].answer() == "ok");
  CHECK(ranks[0].answer() == "ok");
  CHECK(ranks.ask("has 1") == ranks.all("yes"));
  ranks.check_sound();
}

TEST_CASE("nccl processes: a rank that dies costs the others their deadline, and no more",
          "[unit][device]") {
  const bool is_root = GENERATE(false, true);
  Ranks ranks(3);
  SECTION("before it joins") {
    const std::string id = ranks[0].ask("id");
    ranks[2].signal(SIGKILL);
    ranks[0].begin(ranks.word_to_join(0, id, brief_ms));
    CHECK_THAT(ranks[1].ask(ranks.word_to_join(1, id, brief_ms)), StartsWith("unavailable"));
    CHECK_THAT(ranks[0].answer(), StartsWith("unavailable"));
  }
  SECTION("in mid-broadcast") {
    ranks.join();
    const std::string send = fmt::format("broadcast {} {}", is_root ? 2 : 0, brief_ms);
    ranks[0].begin(send);
    ranks[2].signal(SIGKILL);
    CHECK_THAT(ranks[1].ask(send), StartsWith("unavailable"));
    CHECK_THAT(ranks[0].answer(), StartsWith("unavailable"));
  }
  SECTION("stopped, and not dead") {
    ranks.join();
    ranks[2].signal(SIGSTOP);
    const std::string send = fmt::format("broadcast {} {}", is_root ? 2 : 0, brief_ms);
    ranks[0].begin(send);
    CHECK_THAT(ranks[1].ask(send), StartsWith("unavailable"));
    CHECK_THAT(ranks[0].answer(), StartsWith("unavailable"));
  }
  // The others hand round without it, by a communicator of their own.
  ranks.lose(2);
  ranks.check_sound();
  ranks.join();
  CHECK(ranks.ask("broadcast 1 60000") == ranks.all("ok"));
  CHECK(ranks.ask("has 1") == ranks.all("yes"));
  CHECK(ranks.ask("close 60000") == ranks.all("ok"));
  ranks.check_sound();
}

TEST_CASE("nccl processes: an id whose maker is gone is refused", "[unit][device]") {
  Ranks ranks(2);
  const std::string late = ranks.word_to_join(1, ranks[0].ask("id"), brief_ms);
  ranks.lose(0);
  CHECK_THAT(ranks[0].ask(late), StartsWith("i/o: join 2 ranks by NCCL"));
}

}  // namespace ckpt::test
