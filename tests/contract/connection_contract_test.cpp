// Goal:   TCP and the simulated network keep the same contract.
// Method: every case of connection_contract.hpp in both worlds; TCP over loopback.
#include "contract/connection_contract.hpp"

#include "support/run_task.hpp"
#include "support/sim_network.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::test {

namespace {

class TcpWorld : public ConnectionWorld {
 public:
  explicit TcpWorld(std::string address)
      : address_(std::move(address)),
        clock_(make_system_clock(context_.get_executor())),
        network_(context_.get_executor(), *clock_) {}

  asio::io_context& context() override { return context_; }
  Clock& clock() override { return *clock_; }
  wire::Network& dialer() override { return network_; }
  wire::Network& host() override { return network_; }
  std::string listen_address() const override { return address_; }
  void pass() override {
    context_.restart();
    REQUIRE(context_.run_one() == 1);
  }

 private:
  std::string address_;
  asio::io_context context_;
  std::unique_ptr<Clock> clock_;
  wire::TcpNetwork network_;
};

class SimWorld : public ConnectionWorld {
 public:
  SimWorld()
      : clock_(context_),
        network_(42),
        dialer_(network_.add_node("A", clock_)),
        host_(network_.add_node("B", clock_)) {}

  asio::io_context& context() override { return context_; }
  Clock& clock() override { return clock_; }
  wire::Network& dialer() override { return *dialer_; }
  wire::Network& host() override { return *host_; }
  std::string listen_address() const override { return "B:0"; }
  void pass() override { REQUIRE(clock_.advance_to_next()); }

 private:
  asio::io_context context_;
  FakeClock clock_;
  SimNetwork network_;
  std::unique_ptr<wire::Network> dialer_;
  std::unique_ptr<wire::Network> host_;
};

std::unique_ptr<ConnectionWorld> make_world() {
  const std::string kind = GENERATE(as<std::string>(), "sim", "tcp", "tcp over a name");
  INFO(kind);
  if (kind == "sim") return std::make_unique<SimWorld>();
  return std::make_unique<TcpWorld>(kind == "tcp" ? "127.0.0.1:0" : "localhost:0");
}

}  // namespace

TEST_CASE("connection: bytes arrive whole and in order", "[contract][wire]") {
  check_bytes_arrive_in_order(*make_world());
}
TEST_CASE("connection: the bytes of a file arrive as those of memory do", "[contract][wire]") {
  check_file_spans_arrive(*make_world());
}
TEST_CASE("connection: a deadline ends a read and closes the stream", "[contract][wire]") {
  check_deadlines_end_reads(*make_world());
}
TEST_CASE("connection: a deadline ends a write to a peer that does not read", "[contract][wire]") {
  check_deadlines_end_writes(*make_world());
}
TEST_CASE("connection: close ends what is in flight as cancelled", "[contract][wire]") {
  check_close_ends_what_is_in_flight(*make_world());
}
TEST_CASE("connection: bytes sent before close arrive", "[contract][wire]") {
  check_what_was_sent_before_close_arrives(*make_world());
}
TEST_CASE("connection: writing to a closed peer fails and raises no signal", "[contract][wire]") {
  check_writing_to_a_closed_peer_fails(*make_world());
}
TEST_CASE("connection: connecting to nobody is unavailable", "[contract][wire]") {
  check_nobody_answers(*make_world());
}
TEST_CASE("connection: an address is taken once, and free after close", "[contract][wire]") {
  check_an_address_is_taken_once(*make_world());
}
TEST_CASE("connection: closing a listener ends accept", "[contract][wire]") {
  check_closing_a_listener_ends_accept(*make_world());
}
TEST_CASE("connection: the context may be destroyed with operations in it", "[contract][wire]") {
  check_a_context_may_go_first(make_world());
}

// The daemon accepts and authenticates on one thread, and keeps control connections on another.
TEST_CASE("connection: a stream that another network adopts goes on there", "[contract][wire]") {
  asio::io_context first, second;
  const auto first_clock = make_system_clock(first.get_executor());
  const auto second_clock = make_system_clock(second.get_executor());
  wire::TcpNetwork door(first.get_executor(), *first_clock);
  wire::TcpNetwork room(second.get_executor(), *second_clock);
  const Time deadline = first_clock->after(std::chrono::seconds(10));
  auto listener = run_task(first, door.listen("127.0.0.1:0", deadline));
  REQUIRE(listener);
  auto dialed = run_task(first, door.connect((*listener)->address(), deadline));
  REQUIRE(dialed);
  auto accepted = run_task(first, (*listener)->accept());
  REQUIRE(accepted);
  const std::vector<std::byte> sent(100, std::byte{7});
  REQUIRE(run_task(first, (*dialed)->write(sent, deadline)));

  const auto adopted = room.adopt(*accepted);
  REQUIRE(adopted);
  std::vector<std::byte> got(sent.size());
  REQUIRE(run_task(second, adopted->read(got, deadline)));
  CHECK(got == sent);
  CHECK_FALSE(run_task(first, (*accepted)->read(got, deadline)));  // The first end of it is closed.
  REQUIRE(run_task(second, adopted->write(sent, deadline)));
  REQUIRE(run_task(first, (*dialed)->read(got, deadline)));
  CHECK(room.adopt(adopted) == adopted);  // It is there already.
}

}  // namespace ckpt::test
