// Goal:   a stream of TCP that never has to wait meets its deadline all the same, and a name is
//         looked up without holding the thread.
// Method: real sockets on a clock that stands still. The peer has filled the kernel's buffers, so
//         that a read finds more than one turn's bytes at once.
#include "support/pending.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::test {

namespace {

constexpr std::size_t much = 64 << 20;

struct TcpPair {
  TcpPair() {
    listener = run(start(context, network.listen("127.0.0.1:0", no_deadline)));
    auto accepting = start(context, listener->accept());
    near = run(start(context, network.connect(listener->address(), no_deadline)));
    far = run(std::move(accepting));
  }
  // No time passes.
  template <class T>
  T run(Pending<T> pending) {
    while (!pending.is_done()) {
      context.restart();
      REQUIRE(context.run_one() == 1);
    }
    REQUIRE(pending.result());
    return std::move(*pending.result());
  }

  asio::io_context context;
  FakeClock clock{context};
  wire::TcpNetwork network{context.get_executor(), clock};
  std::unique_ptr<wire::Listener> listener;
  std::shared_ptr<wire::Connection> near, far;
};

}  // namespace

TEST_CASE("tcp turn: a name that nobody knows is no address to listen on", "[contract][wire]") {
  asio::io_context context;
  FakeClock clock(context);
  wire::TcpNetwork network(context.get_executor(), clock);
  auto listening = start(context, network.listen("no-such-host.invalid:0", no_deadline));
  // The first turn only begins to look the name up.
  REQUIRE(context.run_one() == 1);
  CHECK_FALSE(listening.is_done());
  while (!listening.is_done()) {
    context.restart();
    REQUIRE(context.run_one() == 1);
  }
  REQUIRE_FALSE(listening.result());
  CHECK(listening.result().error().code() == Errc::invalid_argument);
}

TEST_CASE("tcp turn: a deadline ends a read that always finds bytes", "[contract][wire]") {
  TcpPair pair;
  const std::vector<std::byte> sent(much);
  auto writing = start(pair.context, pair.far->write(sent, no_deadline));
  pair.clock.poll();  // Until the kernel takes no more.
  REQUIRE_FALSE(writing.is_done());
  std::vector<std::byte> got(much);
  const Time passed = pair.clock.now();
  auto reading = start(pair.context, pair.near->read(got, passed));
  while (!reading.is_done()) {
    pair.context.restart();
    REQUIRE(pair.context.run_one() == 1);
  }
  REQUIRE_FALSE(reading.result());
  CHECK(reading.result().error().code() == Errc::unavailable);
  CHECK(reading.result().error().cause() == std::errc::timed_out);
  pair.far->close();
  pair.clock.poll();
}

}  // namespace ckpt::test
