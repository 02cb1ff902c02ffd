// Goal:   nobody without the job's secret gets past the first words, and what a past or another
//         handshake said is worth nothing.
// Method: two honest ends over the simulated network, then each attack: a wrong secret, a forger in
//         the middle that mends checksums, reflection, replay, swapped direction, flips and cuts.
#include "wire/handshake.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "support/sim_pair.hpp"
#include "wire/message.hpp"
#include "wire/peer_acceptor.hpp"

namespace ckpt::wire {

namespace {

using test::Pending;
using test::SimPair;

std::shared_ptr<const Secret> make_secret(std::string_view text) {
  return std::make_shared<const Secret>(Secret::make(std::as_bytes(std::span(text))).value());
}
const std::string good_secret = "the secret of the job, 32 bytes.";

DialerOptions dialer_options(std::string_view secret = good_secret) {
  DialerOptions options;
  options.job = "gpt2";
  options.node = "A";
  options.peer_node = "B";
  options.boot = 11;
  options.purpose = Purpose::data;
  options.secret = make_secret(secret);
  return options;
}

// A daemon called B that knows the job gpt2.
std::shared_ptr<const ListenerOptions> listener_options() {
  auto options = std::make_shared<ListenerOptions>();
  options->find_secret = [secret = make_secret(good_secret)](const std::string& job) {
    return job == "gpt2" ? secret : nullptr;
  };
  options->find_self = [](const std::string&) { return Self{"B", 22}; };
  return options;
}

struct Outcome {
  Result<PeerIdentity> dialer;
  Result<PeerIdentity> listener;
};

class Scene {
 public:
  explicit Scene(std::uint64_t seed = 1) : pair(seed) {}

  Time soon() { return pair.clock.after(std::chrono::seconds(5)); }
  Outcome greet(DialerOptions options) {
    const auto joined = pair.join();
    auto listening =
        test::start(pair.context, greet_as_listener(joined.at_b, listener_options(), soon()));
    auto dialing =
        test::start(pair.context, greet_as_dialer(joined.at_a, std::move(options), soon()));
    Outcome outcome;
    outcome.dialer = test::finish(pair.clock, std::move(dialing));
    outcome.listener = test::finish(pair.clock, std::move(listening));
    return outcome;
  }

  SimPair pair;
};

using Forge = std::function<void(Message&)>;

// Passes messages on, changed; ends with the first connection that does.
Task<void> relay(std::shared_ptr<Connection> from, std::shared_ptr<Connection> to, Forge forge,
                 Time deadline) {
  for (;;) {
    CKPT_CO_TRY(auto message, co_await read_message(*from, deadline));
    forge(message);
    CKPT_CO_CHECK(co_await write_message(*to, std::move(message), deadline));
  }
}

void leave(Message&) {}

// With somebody between dialer and listener who can do anything but knows no secret.
Outcome greet_through(Forge forth, Forge back,
                      std::shared_ptr<const ListenerOptions> listener = listener_options(),
                      DialerOptions dialer = dialer_options()) {
  Scene scene;
  const auto near = scene.pair.join();
  const auto far = scene.pair.join();
  auto& context = scene.pair.context;
  const Time deadline = scene.soon();
  auto up = test::start(context, relay(near.at_b, far.at_a, std::move(forth), deadline));
  auto down = test::start(context, relay(far.at_a, near.at_b, std::move(back), deadline));
  auto listening = test::start(context, greet_as_listener(far.at_b, std::move(listener), deadline));
  auto dialing = test::start(context, greet_as_dialer(near.at_a, std::move(dialer), deadline));
  Outcome outcome;
  outcome.dialer = test::finish(scene.pair.clock, std::move(dialing));
  outcome.listener = test::finish(scene.pair.clock, std::move(listening));
  return outcome;
}

Message make(FrameKind kind, std::vector<std::byte> body) {
  Message message;
  message.kind = kind;
  message.body = std::move(body);
  return message;
}

}  // namespace

TEST_CASE("handshake: both ends learn who the other is", "[unit][wire]") {
  Scene scene;
  const Outcome outcome = scene.greet(dialer_options());
  REQUIRE(outcome.dialer);
  REQUIRE(outcome.dialer->node == "B");
  REQUIRE(outcome.dialer->boot == 22);
  REQUIRE(outcome.listener);
  REQUIRE(outcome.listener->job == "gpt2");
  REQUIRE(outcome.listener->node == "A");
  REQUIRE(outcome.listener->boot == 11);
  REQUIRE(outcome.listener->purpose == Purpose::data);
  REQUIRE(outcome.listener->protocol_version == peer_protocol_version);
}

TEST_CASE("handshake: an unknown job and a wrong secret are refused alike", "[unit][wire]") {
  Scene scene;
  const Outcome wrong = scene.greet(dialer_options("another secret, also 32 bytes..."));
  DialerOptions stranger = dialer_options();
  stranger.job = "bert";
  const Outcome unknown = scene.greet(stranger);
  for (const Outcome* outcome : {&wrong, &unknown}) {
    REQUIRE_FALSE(outcome->dialer);
    REQUIRE_FALSE(outcome->listener);
    REQUIRE(outcome->dialer.error().code() == Errc::invalid_argument);
    REQUIRE(outcome->dialer.error().text().find("refused: job or secret") != std::string::npos);
  }
  REQUIRE(wrong.dialer.error().text() == unknown.dialer.error().text());
}

TEST_CASE("handshake: a daemon that is another node says so, to those who proved themselves",
          "[unit][wire]") {
  Scene scene;
  DialerOptions options = dialer_options();
  options.peer_node = "C";
  const Outcome outcome = scene.greet(options);
  REQUIRE_FALSE(outcome.dialer);
  REQUIRE(outcome.dialer.error().code() == Errc::unavailable);
  REQUIRE(outcome.dialer.error().text().find("this is node B, not C") != std::string::npos);
  REQUIRE_FALSE(outcome.listener);
}

TEST_CASE("handshake: a listener is silent until it was greeted, then gives only a nonce",
          "[unit][wire]") {
  Scene scene;
  const auto joined = scene.pair.join();
  auto listening = test::start(scene.pair.context,
                               greet_as_listener(joined.at_b, listener_options(), scene.soon()));
  scene.pair.clock.advance(std::chrono::seconds(1));
  REQUIRE(scene.pair.network.bytes_delivered("B", "A") == 0);
  auto dialing = test::start(
      scene.pair.context,
      greet_as_dialer(joined.at_a, dialer_options("wrong, wrong, wrong"), scene.soon()));
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(dialing)));
  // The nonce and the refusal, which is the same short sentence for all: no name, boot or proof.
  const std::uint64_t told = scene.pair.network.bytes_delivered("B", "A");
  REQUIRE(told < 2 * frame_header_bytes + proof_bytes + 128);
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(listening)));
}

TEST_CASE("handshake: an honest relay changes nothing", "[unit][wire]") {
  const Outcome outcome = greet_through(leave, leave);
  REQUIRE(outcome.dialer);
  REQUIRE(outcome.listener);
}

TEST_CASE("handshake: the proofs are those of the protocol document", "[unit][wire]") {
  // Computed from the document by another program, with these nonces.
  DialerOptions dialer = dialer_options();
  dialer.make_nonce = [] {
    Proof nonce;
    nonce.fill(std::byte(0x11));
    return nonce;
  };
  auto listener = std::make_shared<ListenerOptions>(*listener_options());
  listener->make_nonce = [] {
    Proof nonce;
    nonce.fill(std::byte(0x22));
    return nonce;
  };
  std::string proof;
  std::string welcome;
  const Forge look = [&](Message& message) {
    std::string& text = message.kind == FrameKind::welcome ? welcome : proof;
    text.clear();
    for (const std::byte byte : message.body)
      text += fmt::format("{:02x}", std::to_integer<int>(byte));
  };
  REQUIRE(greet_through(look, look, listener, dialer).dialer);
  REQUIRE(proof == "08df415299748361cd22c464131c88606b7512f472b91d089e1e587c63a1aa7a");
  REQUIRE(welcome ==
          "1600000000000000"
          "fb4317950bf977a249480d0084cb7d72deecc9116dc91a8191a7f67fa507f33b");
}

TEST_CASE("handshake: a changed byte is refused, also when its checksum was mended",
          "[unit][wire]") {
  const FrameKind kind =
      GENERATE(FrameKind::hello, FrameKind::challenge, FrameKind::proof, FrameKind::welcome);
  // Wherever it is: in names, numbers, nonces or proofs.
  bool was_touched = true;
  for (std::size_t at = 0; was_touched; ++at) {
    was_touched = false;
    const Forge forge = [&, kind, at](Message& message) {
      if (message.kind != kind || at >= message.body.size()) return;
      message.body[at] ^= std::byte(2);
      was_touched = true;
    };
    const Outcome outcome = greet_through(forge, forge);
    INFO(to_string(kind) << " byte " << at);
    REQUIRE(outcome.dialer.has_value() == !was_touched);
    REQUIRE((at >= proof_bytes || was_touched));
  }
}

TEST_CASE("handshake: a dialer's words do not prove a listener", "[unit][wire]") {
  // The listener has no secret; it answers with the dialer's own nonce and proof.
  Scene scene;
  const auto joined = scene.pair.join();
  auto dialing =
      test::start(scene.pair.context, greet_as_dialer(joined.at_a, dialer_options(), scene.soon()));
  const Time deadline = scene.soon();
  const auto hello = scene.pair.run(read_message(*joined.at_b, deadline));
  REQUIRE(hello);
  const auto nonce = std::span(hello->body).subspan(9, proof_bytes);
  REQUIRE(scene.pair.run(write_message(
      *joined.at_b, make(FrameKind::challenge, {nonce.begin(), nonce.end()}), deadline)));
  const auto proof = scene.pair.run(read_message(*joined.at_b, deadline));
  REQUIRE(proof);
  std::vector<std::byte> welcome(8);
  welcome.insert(welcome.end(), proof->body.begin(), proof->body.end());
  REQUIRE(scene.pair.run(write_message(*joined.at_b, make(FrameKind::welcome, welcome), deadline)));
  const auto outcome = test::finish(scene.pair.clock, std::move(dialing));
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().text().find("did not prove") != std::string::npos);
}

TEST_CASE("handshake: the words of one handshake do not open another", "[unit][wire]") {
  std::vector<Message> recorded;
  const Outcome first =
      greet_through([&](Message& message) { recorded.push_back(message); }, leave);
  REQUIRE(first.listener);
  REQUIRE(recorded.size() == 2);
  Scene scene;
  const auto joined = scene.pair.join();
  auto listening = test::start(scene.pair.context,
                               greet_as_listener(joined.at_b, listener_options(), scene.soon()));
  REQUIRE(scene.pair.run(write_message(*joined.at_a, recorded[0], scene.soon())));
  REQUIRE(scene.pair.run(read_message(*joined.at_a, scene.soon())));
  REQUIRE(scene.pair.run(write_message(*joined.at_a, recorded[1], scene.soon())));
  const auto outcome = test::finish(scene.pair.clock, std::move(listening));
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code() == Errc::invalid_argument);
}

TEST_CASE("handshake: a dialer's proof does not open its own listener", "[unit][wire]") {
  // B dials somebody who turns round and greets B's listener as A, with what B says.
  Scene scene;
  DialerOptions from_b = dialer_options();
  from_b.node = "B";
  from_b.peer_node = "A";
  const auto dialed = scene.pair.join();
  const auto turned = scene.pair.join();
  const Time deadline = scene.soon();
  auto& context = scene.pair.context;
  // Names are swapped on the way, so that the hello fits.
  const Forge swap = [](Message& message) {
    if (message.kind != FrameKind::hello) return;
    const std::size_t size = message.body.size();
    std::swap(message.body[size - 1], message.body[size - 6]);
  };
  auto up = test::start(context, relay(dialed.at_b, turned.at_a, swap, deadline));
  auto down = test::start(context, relay(turned.at_a, dialed.at_b, leave, deadline));
  auto listening =
      test::start(context, greet_as_listener(turned.at_b, listener_options(), deadline));
  auto dialing = test::start(context, greet_as_dialer(dialed.at_a, from_b, deadline));
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(listening)));
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(dialing)));
}

TEST_CASE("handshake: another protocol version is refused, with both numbers", "[unit][wire]") {
  Scene scene;
  const auto joined = scene.pair.join();
  auto listening = test::start(scene.pair.context,
                               greet_as_listener(joined.at_b, listener_options(), scene.soon()));
  FrameHeader header;
  header.version = peer_protocol_version + 1;
  header.kind = FrameKind::hello;
  const FrameHeaderBytes hello = encode_header(header);
  REQUIRE(scene.pair.run(joined.at_a->write(hello, scene.soon())));
  const auto answer = scene.pair.run(read_message(*joined.at_a, scene.soon()));
  REQUIRE(answer);
  REQUIRE(answer->kind == FrameKind::refused);
  const Error told = decode_refusal(answer->body, "B");
  REQUIRE(told.code() == Errc::version_mismatch);
  REQUIRE(told.text().find(fmt::format("version {}", peer_protocol_version + 1)) !=
          std::string::npos);
  const auto outcome = test::finish(scene.pair.clock, std::move(listening));
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code() == Errc::version_mismatch);
}

TEST_CASE("handshake: a flip or a cut at any byte ends it, in both directions", "[unit][wire]") {
  const auto kind = GENERATE(test::StreamFault::Kind::flip, test::StreamFault::Kind::reset);
  Scene measured;
  REQUIRE(measured.greet(dialer_options()).dialer);
  for (const bool forth : {true, false}) {
    test::StreamFault fault;
    fault.from = forth ? "A" : "B";
    fault.to = forth ? "B" : "A";
    fault.kind = kind;
    const std::uint64_t size = measured.pair.network.bytes_delivered(fault.from, fault.to);
    for (fault.offset = 0; fault.offset < size; ++fault.offset) {
      Scene scene(fault.offset);
      scene.pair.network.inject(fault);
      const Outcome outcome = scene.greet(dialer_options());
      INFO(fault.from << " byte " << fault.offset);
      REQUIRE_FALSE(outcome.dialer);
    }
  }
}

TEST_CASE("handshake: large or strange first words are not read", "[unit][wire]") {
  const FrameKind kind = GENERATE(FrameKind::report, FrameKind::offer, FrameKind::data,
                                  FrameKind::proof, FrameKind::goodbye);
  Scene scene;
  const auto joined = scene.pair.join();
  auto listening = test::start(scene.pair.context,
                               greet_as_listener(joined.at_b, listener_options(), scene.soon()));
  FrameHeader header;
  header.kind = kind;
  header.body_bytes = std::min(body_bytes_max(kind), handshake_body_bytes_max + 1);
  const FrameHeaderBytes bytes = encode_header(header);
  REQUIRE(scene.pair.run(joined.at_a->write(bytes, scene.soon())));
  const std::vector<std::byte> body(header.body_bytes);
  auto writing = test::start(scene.pair.context, joined.at_a->write(body, scene.soon()));
  const auto outcome = test::finish(scene.pair.clock, std::move(listening));
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code() != Errc::unavailable);
}

TEST_CASE("peer acceptor: those who prove themselves are handed over", "[unit][wire]") {
  Scene scene;
  std::vector<PeerIdentity> admitted;
  auto keeping = test::start(scene.pair.context,
                             admit_peers(*scene.pair.listener, scene.pair.clock, listener_options(),
                                         [&](std::shared_ptr<Connection>, PeerIdentity peer) {
                                           admitted.push_back(std::move(peer));
                                         }));
  const auto dialed = scene.pair.run(scene.pair.a->connect("B:1", scene.soon()));
  REQUIRE(dialed);
  REQUIRE(scene.pair.run(greet_as_dialer(*dialed, dialer_options(), scene.soon())));
  scene.pair.clock.poll();
  REQUIRE(admitted.size() == 1);
  REQUIRE(admitted.front().node == "A");
  scene.pair.listener->close();
  REQUIRE(test::finish(scene.pair.clock, std::move(keeping)));
}

namespace {

// A door at B, and connections to it that say nothing.
struct Siege {
  Siege()
      : keeping(
            test::start(scene.pair.context,
                        admit_peers(*scene.pair.listener, scene.pair.clock, listener_options(),
                                    [this](std::shared_ptr<Connection> connection, PeerIdentity) {
                                      admitted.push_back(std::move(connection));
                                    }))) {}

  void connect_silently(Network& from, std::size_t count) {
    for (std::size_t index = 0; index < count; ++index) {
      const auto dialed = scene.pair.run(from.connect("B:1", scene.soon()));
      REQUIRE(dialed);
      silent.push_back(*dialed);
    }
    scene.pair.clock.poll();
  }
  bool may_enter(Network& from) {
    const auto dialed = scene.pair.run(from.connect("B:1", scene.soon()));
    REQUIRE(dialed);
    const std::size_t before = admitted.size();
    const bool is_greeted =
        scene.pair.run(greet_as_dialer(*dialed, dialer_options(), scene.soon())).has_value();
    scene.pair.clock.poll();
    return is_greeted && admitted.size() == before + 1;
  }
  void end() {
    scene.pair.listener->close();
    REQUIRE(test::finish(scene.pair.clock, std::move(keeping)));
  }

  Scene scene;
  std::vector<std::shared_ptr<Connection>> admitted, silent;
  decltype(test::start(std::declval<asio::io_context&>(), std::declval<Task<void>>())) keeping;
};

}  // namespace

TEST_CASE("peer acceptor: the half-open are few, and not for long", "[unit][wire]") {
  Siege siege;
  siege.connect_silently(*siege.scene.pair.a, 3 * half_open_connections_max);
  CHECK(siege.scene.pair.network.open_streams("B") == half_open_of_one_max);
  siege.scene.pair.clock.advance(greeting_time_max + std::chrono::seconds(1));
  CHECK(siege.scene.pair.network.open_streams("B") == 0);
  CHECK(siege.admitted.empty());
  siege.end();
}

TEST_CASE("peer acceptor: strangers keep no peer out, wherever they come from", "[unit][wire]") {
  Siege siege;
  test::SimNetwork& network = siege.scene.pair.network;
  const std::size_t hosts = GENERATE(1, 4, 5, 64, 100);
  std::vector<std::unique_ptr<Network>> fronts;
  for (std::size_t host = 0; host < hosts; ++host) {
    fronts.push_back(network.add_node("S" + std::to_string(host), siege.scene.pair.clock));
    siege.connect_silently(*fronts.back(), 2 * half_open_connections_max / hosts + 1);
  }
  CHECK(network.open_streams("B") <= half_open_connections_max);
  CHECK(siege.may_enter(*siege.scene.pair.a));
  CHECK(siege.may_enter(*fronts.front()));  // A peer that shares its address with strangers.
  siege.end();
}

}  // namespace ckpt::wire
