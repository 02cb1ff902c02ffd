// Goal:   a message arrives whole with its descriptors or not at all, from our own user only, and
//         nothing that the other side sends can make us leak, stall or allocate at its will.
// Method: both ends in one context; raw bytes written by hand in place of a peer that misbehaves; a
//         fake clock, so that deadlines pass when the test says so.
#include "os/local_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/checksum.hpp"
#include "base/random.hpp"
#include "os/local_stream.hpp"
#include "os/process.hpp"
#include "support/assertion_trap.hpp"
#include "support/descriptors.hpp"
#include "support/fake_clock.hpp"
#include "support/run_task.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {
namespace {

using std::chrono::milliseconds;

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> body(bytes);
  for (std::size_t i = 0; i < bytes; ++i) body[i] = static_cast<std::byte>(i * 31 + i / 251);
  return body;
}

// A pipe's reading end in the message: what is written into the other end must come out of it.
struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    read_end = os::Fd(ends[0]);
    write_end = os::Fd(ends[1]);
  }
  bool leads_to(const os::Fd& received) const {
    char letter = 'k';
    if (::write(write_end.number(), &letter, 1) != 1) return false;
    letter = 0;
    return ::read(received.number(), &letter, 1) == 1 && letter == 'k';
  }
  os::Fd read_end;
  os::Fd write_end;
};

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    auto first = os::LocalConnection::adopt(context.get_executor(), clock, os::Fd(ends[0]));
    REQUIRE(first);
    ours = std::move(*first);
    raw = os::Fd(ends[1]);
  }
  // Makes the other end a connection too; without it the test writes raw bytes.
  os::LocalConnection& theirs() {
    if (!other) {
      auto second = os::LocalConnection::adopt(context.get_executor(), clock, std::move(raw));
      REQUIRE(second);
      other.emplace(std::move(*second));
    }
    return *other;
  }
  void put(std::span<const std::byte> bytes) const {
    REQUIRE(::send(raw.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  // As a peer with descriptors beside the bytes, that follows no rules.
  void put(std::span<const std::byte> bytes, std::span<const int> descriptors) const {
    std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
    REQUIRE(::sendmsg(raw.number(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  Result<os::LocalMessage> receive(os::LocalConnection& connection) {
    return run_task(context, connection.receive(no_deadline));
  }

  asio::io_context context;
  FakeClock clock{context};
  os::LocalConnection ours;
  std::optional<os::LocalConnection> other;
  os::Fd raw;
};

os::LocalHeaderBytes header_for(std::span<const std::byte> body, std::uint16_t kind = 1) {
  os::LocalHeader header;
  header.kind = kind;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.body_crc = crc32(body);
  return os::encode_local_header(header);
}

TEST_CASE("local connection: bodies of every size arrive whole and in order", "[unit][os]") {
  Pair pair;
  std::vector<std::optional<Result<void>>> sent(8);
  const std::vector<std::size_t> sizes = {0, 1, 4095, 4096, 200'000, MiB - 1, MiB, 5 * MiB + 1};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    os::LocalMessage message(static_cast<std::uint16_t>(i), pattern(sizes[i]));
    spawn_into(pair.context.get_executor(), pair.ours.send(std::move(message), no_deadline),
               sent[i]);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto message = pair.receive(pair.theirs());
    REQUIRE(message);
    CHECK(message->kind == i);
    CHECK(message->body == pattern(sizes[i]));
    CHECK(message->descriptors.empty());
  }
  pair.clock.poll();
  for (const auto& status : sent) CHECK((status && *status));
}

TEST_CASE("local connection: both directions work at once, through full buffers", "[unit][os]") {
  Pair pair;
  os::LocalConnection& theirs = pair.theirs();
  std::optional<Result<void>> sent[2];
  std::optional<Result<os::LocalMessage>> received[2];
  spawn_into(pair.context.get_executor(),
             pair.ours.send(os::LocalMessage(1, pattern(3 * MiB)), no_deadline), sent[0]);
  spawn_into(pair.context.get_executor(),
             theirs.send(os::LocalMessage(2, pattern(2 * MiB)), no_deadline), sent[1]);
  spawn_into(pair.context.get_executor(), pair.ours.receive(no_deadline), received[0]);
  spawn_into(pair.context.get_executor(), theirs.receive(no_deadline), received[1]);
  while (!received[0] || !received[1] || !sent[0] || !sent[1]) {
    pair.context.restart();
    pair.context.run_one();
  }
  CHECK((*received[0])->body == pattern(2 * MiB));
  CHECK((*received[1])->body == pattern(3 * MiB));
}

TEST_CASE("local connection: descriptors arrive with their own message", "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    Pair pair;
    os::LocalConnection& theirs = pair.theirs();
    const Pipe pipes[3];
    // All three lie in the socket before the first is read: the stream has coalesced them.
    for (std::size_t count = 0; count < 3; ++count) {
      os::LocalMessage message(static_cast<std::uint16_t>(count), pattern(10 * count));
      for (std::size_t i = 0; i < count; ++i) {
        auto fd = pipes[i].read_end.dup();
        REQUIRE(fd);
        message.descriptors.push_back(std::move(*fd));
      }
      const auto sent = run_task(pair.context, pair.ours.send(std::move(message), no_deadline));
      REQUIRE(sent);
    }
    for (std::size_t count = 0; count < 3; ++count) {
      const auto message = pair.receive(theirs);
      REQUIRE(message);
      CHECK(message->kind == count);
      CHECK(message->body == pattern(10 * count));
      REQUIRE(message->descriptors.size() == count);
      for (std::size_t i = 0; i < count; ++i) {
        CHECK(pipes[i].leads_to(message->descriptors[i]));
        CHECK((::fcntl(message->descriptors[i].number(), F_GETFD) & FD_CLOEXEC) != 0);
      }
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("local connection: as many descriptors as the kernel passes, and not one more",
          "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    Pair pair;
    const Pipe pipe;
    for (const std::size_t count : {os::local_descriptors_max, os::local_descriptors_max + 1}) {
      os::LocalMessage message(1);
      for (std::size_t i = 0; i < count; ++i) message.descriptors.push_back(*pipe.read_end.dup());
      const auto sent = run_task(pair.context, pair.ours.send(std::move(message), no_deadline));
      CHECK(sent.has_value() == (count == os::local_descriptors_max));
      if (!sent) CHECK(sent.error().code() == Errc::invalid_argument);
    }
    const auto message = pair.receive(pair.theirs());
    REQUIRE(message);
    CHECK(message->descriptors.size() == os::local_descriptors_max);
    CHECK(pair.ours.is_open());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("local connection: a message split into single bytes keeps its descriptors",
          "[unit][os]") {
  Pair pair;
  const Pipe pipe;
  const auto body = pattern(9);
  const auto header = header_for(body, 77);
  std::optional<Result<os::LocalMessage>> received;
  spawn_into(pair.context.get_executor(), pair.ours.receive(no_deadline), received);
  const int number = pipe.read_end.number();
  pair.put(std::span(header).first(1), std::span(&number, 1));
  for (std::size_t i = 1; i < header.size(); ++i) {
    pair.clock.poll();
    CHECK(!received);
    pair.put(std::span(header).subspan(i, 1));
  }
  for (const std::byte& byte : body) {
    pair.clock.poll();
    CHECK(!received);
    pair.put(std::span(&byte, 1));
  }
  pair.clock.poll();
  REQUIRE(received);
  REQUIRE(*received);
  CHECK((*received)->kind == 77);
  CHECK((*received)->body == body);
  REQUIRE((*received)->descriptors.size() == 1);
  CHECK(pipe.leads_to((*received)->descriptors[0]));
}

TEST_CASE("local connection: descriptors where none may be are closed", "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    Pair pair;
    const Pipe pipe;
    const int number = pipe.read_end.number();
    const auto body = pattern(20);
    const auto header = header_for(body);
    pair.put(header);
    pair.put(std::span(body).first(10), std::span(&number, 1));
    pair.put(std::span(body).subspan(10));
    const std::size_t inside = open_descriptors();
    const auto message = pair.receive(pair.ours);
    REQUIRE(message);
    CHECK(message->descriptors.empty());
    CHECK(open_descriptors() == inside);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("local connection: too many descriptors, byte by byte, are closed with the connection",
          "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    Pair pair;
    const Pipe pipe;
    const std::vector<int> numbers(200, pipe.read_end.number());
    const auto header = header_for({});
    pair.put(std::span(header).first(8), numbers);
    pair.put(std::span(header).subspan(8), numbers);
    const auto message = pair.receive(pair.ours);
    REQUIRE(!message);
    CHECK(message.error().code() == Errc::exhausted);
    CHECK(!pair.ours.is_open());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("local connection: the end of the stream is seen between messages and inside one",
          "[unit][os]") {
  const auto body = pattern(100);
  const auto header = header_for(body);
  for (const std::size_t sent : {0, 1, 15, 16, 50, 115}) {
    Pair pair;
    std::vector<std::byte> stream(header.begin(), header.end());
    stream.insert(stream.end(), body.begin(), body.end());
    if (sent != 0) pair.put(std::span(stream).first(sent));
    pair.raw.reset();
    const auto message = pair.receive(pair.ours);
    INFO("bytes sent: " << sent);
    REQUIRE(!message);
    CHECK(message.error().code() == Errc::unavailable);
    CHECK(!pair.ours.is_open());
    const auto later = pair.receive(pair.ours);
    CHECK(later.error().code() == Errc::cancelled);
  }
}

TEST_CASE("local connection: each wrong byte of a header or a body is refused", "[unit][os]") {
  const auto body = pattern(8);
  const auto header = header_for(body);
  std::vector<std::byte> good(header.begin(), header.end());
  good.insert(good.end(), body.begin(), body.end());
  for (std::size_t place = 0; place < good.size(); ++place) {
    if (place == 6 || place == 7) continue;  // The kind: its meaning is the receiver's to know.
    Pair pair;
    auto bad = good;
    bad[place] ^= std::byte{0x10};
    pair.put(bad);
    pair.raw.reset();  // Where the length has grown, the rest never comes.
    const auto message = pair.receive(pair.ours);
    INFO("byte " << place);
    REQUIRE(!message);
    CHECK(!pair.ours.is_open());
    if (place < 4 || place >= 12) CHECK(message.error().code() == Errc::corruption);
    if (place == 4) CHECK(message.error().code() == Errc::version_mismatch);
  }
}

TEST_CASE("local connection: a length over the limit is refused before anything is allocated",
          "[unit][os]") {
  Pair pair;
  os::LocalHeader header;
  header.body_bytes = static_cast<std::uint32_t>(os::local_body_bytes_max + 1);
  pair.put(os::encode_local_header(header));
  const auto message = pair.receive(pair.ours);
  REQUIRE(!message);
  CHECK(message.error().code() == Errc::exhausted);
  CHECK(message.error().text().find(std::to_string(header.body_bytes)) != std::string::npos);
  CHECK(!pair.ours.is_open());
  os::LocalMessage too_large(1);
  too_large.body.resize(os::local_body_bytes_max + 1);
  Pair other;
  const auto sent = run_task(other.context, other.ours.send(std::move(too_large), no_deadline));
  CHECK(sent.error().code() == Errc::invalid_argument);
  CHECK(other.ours.is_open());
}

TEST_CASE("local connection: a deadline between messages leaves it open, inside one it does not",
          "[unit][os]") {
  Pair pair;
  std::optional<Result<os::LocalMessage>> received;
  spawn_into(pair.context.get_executor(), pair.ours.receive(pair.clock.after(milliseconds(5))),
             received);
  pair.clock.advance(milliseconds(4));
  CHECK(!received);
  pair.clock.advance(milliseconds(1));
  REQUIRE(received);
  CHECK(received->error().code() == Errc::unavailable);
  CHECK(pair.ours.is_open());

  const auto header = header_for(pattern(3));
  pair.put(header);
  received.reset();
  spawn_into(pair.context.get_executor(), pair.ours.receive(pair.clock.after(milliseconds(5))),
             received);
  pair.clock.advance(milliseconds(5));
  REQUIRE(received);
  CHECK(received->error().code() == Errc::unavailable);
  CHECK(!pair.ours.is_open());
}

TEST_CASE("local connection: a reader's deadline does not disturb a writer", "[unit][os]") {
  Pair pair;
  std::optional<Result<void>> sent;
  std::optional<Result<os::LocalMessage>> received;
  spawn_into(pair.context.get_executor(),
             pair.ours.send(os::LocalMessage(1, pattern(4 * MiB)), no_deadline), sent);
  spawn_into(pair.context.get_executor(), pair.ours.receive(pair.clock.after(milliseconds(5))),
             received);
  pair.clock.advance(milliseconds(5));
  REQUIRE(received);
  CHECK(!sent);
  const auto message = pair.receive(pair.theirs());
  REQUIRE(message);
  CHECK(message->body == pattern(4 * MiB));
  pair.clock.poll();
  CHECK((sent && *sent));
}

TEST_CASE("local connection: senders queue up to a limit, and one may give up", "[unit][os]") {
  Pair pair;
  std::vector<std::optional<Result<void>>> sent(os::local_senders_max + 1);
  spawn_into(pair.context.get_executor(),
             pair.ours.send(os::LocalMessage(0, pattern(4 * MiB)), no_deadline), sent[0]);
  spawn_into(pair.context.get_executor(),
             pair.ours.send(os::LocalMessage(1), pair.clock.after(milliseconds(3))), sent[1]);
  for (std::size_t i = 2; i < sent.size(); ++i) {
    spawn_into(pair.context.get_executor(),
               pair.ours.send(os::LocalMessage(static_cast<std::uint16_t>(i)), no_deadline),
               sent[i]);
  }
  pair.clock.poll();
  REQUIRE(sent.back());
  CHECK(sent.back()->error().code() == Errc::exhausted);
  pair.clock.advance(milliseconds(3));
  REQUIRE(sent[1]);
  CHECK(sent[1]->error().code() == Errc::unavailable);
  CHECK(pair.ours.is_open());
  CHECK(pair.receive(pair.theirs())->kind == 0);
  for (std::uint16_t kind = 2; kind < os::local_senders_max; ++kind) {
    CHECK(pair.receive(pair.theirs())->kind == kind);
  }
}

TEST_CASE("local connection: closing ends what is pending with cancelled", "[unit][os]") {
  const bool is_destroyed = GENERATE(false, true);
  Pair pair;
  std::optional<Result<os::LocalMessage>> received;
  std::optional<Result<void>> sent[2];
  spawn_into(pair.context.get_executor(), pair.ours.receive(no_deadline), received);
  for (auto& status : sent) {
    spawn_into(pair.context.get_executor(),
               pair.ours.send(os::LocalMessage(1, pattern(4 * MiB)), no_deadline), status);
  }
  pair.clock.poll();
  CHECK(!received);
  if (is_destroyed) {
    pair.ours = os::LocalConnection();
  } else {
    pair.ours.close();
  }
  pair.clock.poll();
  REQUIRE(received);
  CHECK(received->error().code() == Errc::cancelled);
  for (const auto& status : sent) {
    REQUIRE(status);
    CHECK(status->error().code() == Errc::cancelled);
  }
  CHECK(!pair.ours.is_open());
}

TEST_CASE("local connection: a write to a peer that is gone is unavailable, not a signal",
          "[unit][os]") {
  Pair pair;
  pair.raw.reset();
  const auto sent = run_task(pair.context, pair.ours.send(os::LocalMessage(1), no_deadline));
  REQUIRE(!sent);
  CHECK(sent.error().code() == Errc::unavailable);
}

TEST_CASE("local connection: a peer's last words are heard, also after later writes",
          "[unit][os]") {
  Pair pair;
  for (std::uint16_t kind = 1; kind <= 2; ++kind) {
    REQUIRE(run_task(pair.context, pair.theirs().send(os::LocalMessage(kind), no_deadline)));
  }
  pair.other.reset();
  REQUIRE(!run_task(pair.context, pair.ours.send(os::LocalMessage(3), no_deadline)));
  for (std::uint16_t kind = 1; kind <= 2; ++kind) {
    const auto heard = pair.receive(pair.ours);
    REQUIRE(heard);
    CHECK(heard->kind == kind);
  }
  CHECK(!pair.receive(pair.ours));
  CHECK(!pair.ours.is_open());
}

TEST_CASE("local connection: two receives at once are a bug", "[unit][os]") {
  Pair pair;
  std::optional<Result<os::LocalMessage>> first;
  spawn_into(pair.context.get_executor(), pair.ours.receive(no_deadline), first);
  pair.clock.poll();
  const AssertionTrap trap;
  CHECK_THROWS_AS(run_task(pair.context, pair.ours.receive(no_deadline)), TrippedAssertion);
}

struct Place {
  Result<os::LocalListener> listen() {
    return os::LocalListener::open(context.get_executor(), *clock, path);
  }
  Result<os::LocalConnection> connect() {
    return run_task(context, os::connect_local(*clock, path, clock->after(milliseconds(50))));
  }
  TemporaryDirectory directory;
  std::string path = directory.file("ckptd.sock");
  asio::io_context context;
  std::unique_ptr<Clock> clock = make_system_clock(context.get_executor());
};

TEST_CASE("local socket: a listener meets its clients and knows who they are", "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    Place place;
    auto listener = place.listen();
    REQUIRE(listener);
    struct stat status{};
    REQUIRE(::stat(place.path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    auto client = place.connect();
    REQUIRE(client);
    auto server = run_task(place.context, listener->accept(no_deadline));
    REQUIRE(server);
    for (const os::LocalConnection* side : {&*client, &*server}) {
      CHECK(side->peer().pid == ::getpid());
      CHECK(side->peer().uid == ::geteuid());
      const auto process = side->peer_process();
      REQUIRE(process);
      CHECK(!os::is_gone(*process));
    }
    REQUIRE(run_task(place.context, client->send(os::LocalMessage(9, pattern(5)), no_deadline)));
    const auto message = run_task(place.context, server->receive(no_deadline));
    REQUIRE(message);
    CHECK(message->kind == 9);
    const auto nobody =
        run_task(place.context, listener->accept(place.clock->after(milliseconds(1))));
    CHECK(nobody.error().code() == Errc::unavailable);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("local socket: its file goes with the listener, but never somebody else's",
          "[unit][os]") {
  Place place;
  {
    auto listener = place.listen();
    REQUIRE(listener);
    CHECK(std::filesystem::exists(place.path));
    CHECK(listener->is_reachable());
  }
  CHECK(!std::filesystem::exists(place.path));
  {
    auto listener = place.listen();
    REQUIRE(listener);
    std::filesystem::remove(place.path);
    CHECK_FALSE(listener->is_reachable());
    std::ofstream(place.path) << "another";
    CHECK_FALSE(listener->is_reachable());
  }
  CHECK(std::filesystem::exists(place.path));
}

TEST_CASE("local socket: a stale socket is replaced, a living one and a file are not",
          "[unit][os]") {
  Place place;
  {
    const os::Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(dead.number() >= 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, place.path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(::bind(dead.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0);
  }
  const auto refused = place.connect();
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unavailable);
  auto listener = place.listen();
  REQUIRE(listener);
  const auto second = place.listen();
  REQUIRE(!second);
  CHECK(second.error().code() == Errc::unavailable);
  CHECK(place.connect());
  listener->close();
  std::ofstream(place.path) << "precious";
  const auto third = place.listen();
  REQUIRE(!third);
  CHECK(third.error().code() == Errc::invalid_argument);
  CHECK(std::filesystem::file_size(place.path) == 8);
}

TEST_CASE("local socket: a directory that others may enter is refused", "[unit][os]") {
  Place place;
  const auto refused = [&place] {
    const auto listener = place.listen();
    REQUIRE(!listener);
    CHECK(listener.error().code() == Errc::invalid_argument);
    return listener.error().text();
  };
  const auto directory = place.directory.path();
  for (const mode_t mode : {0755, 0710, 0701, 0777}) {
    REQUIRE(::chmod(directory.c_str(), mode) == 0);
    CHECK(refused().find("700") != std::string::npos);
  }
  REQUIRE(::chmod(directory.c_str(), 0700) == 0);
  const TemporaryDirectory links;
  std::filesystem::create_directory_symlink(directory, links.path() / "link");
  place.path = links.file("link/ckptd.sock");
  CHECK(refused().find("symbolic link") != std::string::npos);
  if (::geteuid() == 0) {
    const TemporaryDirectory foreign;
    REQUIRE(::chown(foreign.path().c_str(), 12345, 12345) == 0);
    place.path = foreign.file("ckptd.sock");
    CHECK(refused().find("12345") != std::string::npos);
  }
}

TEST_CASE("local socket: a path longer than a socket's address works", "[unit][os]") {
  Place place;
  const std::string deep = place.directory.file(std::string(120, 'd'));
  REQUIRE(::mkdir(deep.c_str(), 0700) == 0);
  place.path = deep + "/ckptd.sock";
  auto listener = place.listen();
  REQUIRE(listener);
  CHECK(place.connect());
}

TEST_CASE("local socket: without a socket there is nobody to find", "[unit][os]") {
  Place place;
  const auto none = place.connect();
  REQUIRE(!none);
  CHECK(none.error().code() == Errc::not_found);
  place.path = place.directory.file("no/such/place");
  CHECK(place.connect().error().code() == Errc::not_found);
}

TEST_CASE("local socket: closing the listener ends accept with cancelled", "[unit][os]") {
  Place place;
  auto listener = place.listen();
  REQUIRE(listener);
  std::optional<Result<os::LocalConnection>> accepted;
  spawn_into(place.context.get_executor(), listener->accept(no_deadline), accepted);
  place.context.poll();
  CHECK(!accepted);
  listener->close();
  place.context.restart();
  place.context.run();
  REQUIRE(accepted);
  CHECK(accepted->error().code() == Errc::cancelled);
}

TEST_CASE("local socket: a full backlog is waited for until the deadline", "[unit][os]") {
  Place place;
  auto listener = place.listen();
  REQUIRE(listener);
  std::vector<os::LocalConnection> clients;
  for (;;) {
    auto client = place.connect();
    if (!client) {
      CHECK(client.error().code() == Errc::unavailable);
      break;
    }
    clients.push_back(std::move(*client));
    REQUIRE(clients.size() < 1000);
  }
  CHECK(clients.size() >= 64);
  REQUIRE(run_task(place.context, listener->accept(no_deadline)));
  CHECK(place.connect());
}

TEST_CASE("local socket: a process of another user is turned away", "[unit][os]") {
  if (::geteuid() != 0) return;  // Only root can become somebody else.
  Place place;
  auto listener = place.listen();
  REQUIRE(listener);
  // The socket's modes would keep the other user out: open them, so that only the check is left.
  REQUIRE(::chmod(place.directory.path().c_str(), 0777) == 0);
  REQUIRE(::chmod(place.path.c_str(), 0777) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, place.path.c_str(), sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || ::setuid(12345) != 0) std::_Exit(1);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      std::_Exit(2);
    }
    char byte = 0;
    std::_Exit(::read(fd, &byte, 1) == 0 ? 0 : 3);  // Closed, without a word.
  }
  auto process = os::open_process(child);
  REQUIRE(process);
  const auto watch = os::ProcessWatch::start(place.context.get_executor(), *process,
                                             [&listener] { listener->close(); });
  const auto accepted = run_task(place.context, listener->accept(no_deadline));
  CHECK(accepted.error().code() == Errc::cancelled);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace ckpt::test
