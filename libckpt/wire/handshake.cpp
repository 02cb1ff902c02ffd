// The handshake, step by step; libckpt/docs/protocol.md has the bytes.
//
//   1. The dialer sends hello: its name, the name of its peer, the job, and a nonce.
//   2. The listener answers with a nonce, whatever the job: strangers learn nothing.
//   3. The dialer proves itself, over all of that.
//   4. The listener checks the proof, and only then sends its boot, with a proof of its own.
//   5. The dialer checks that proof.
#include "wire/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "format/codec.hpp"
#include "wire/message.hpp"

namespace ckpt::wire {

namespace {

constexpr std::string_view key_salt = "libckpt peer handshake 1";
// One answer for both, so that nobody can find out which jobs a daemon knows.
constexpr std::string_view refused_job_or_secret =
    "job or secret (a job that is not known here, or another secret_file)";

struct PeerHello {
  std::string job;
  std::string dialer;
  std::string listener;
  std::uint64_t boot = 0;
  Purpose purpose = Purpose::control;
  Proof nonce{};
};

enum class Role : std::uint8_t { dialer = 1, listener = 2 };

std::vector<std::byte> encode(const PeerHello& hello) {
  format::Writer writer;
  writer.u8(static_cast<std::uint8_t>(hello.purpose));
  writer.u64(hello.boot);
  writer.raw(hello.nonce);
  writer.string(hello.job);
  writer.string(hello.dialer);
  writer.string(hello.listener);
  return writer.take();
}

Proof read_proof(format::Reader& reader) {
  Proof proof{};
  const auto bytes = reader.raw(proof.size());
  if (bytes.size() == proof.size()) std::copy(bytes.begin(), bytes.end(), proof.begin());
  return proof;
}

// Names go to logs and tables: they have printable characters, and no spaces.
bool is_name(const std::string& text) {
  const auto prints = [](unsigned char letter) { return letter > 0x20 && letter != 0x7f; };
  return !text.empty() && std::all_of(text.begin(), text.end(), prints);
}

Result<PeerHello> decode_hello(std::span<const std::byte> body) {
  format::Reader reader(body, "hello");
  PeerHello hello;
  hello.purpose = reader.enumerator(Purpose::control, Purpose::data);
  hello.boot = reader.u64();
  hello.nonce = read_proof(reader);
  hello.job = reader.string(job_bytes_max);
  hello.dialer = reader.string(node_bytes_max);
  hello.listener = reader.string(node_bytes_max);
  CKPT_CHECK(reader.finish());
  if (!is_name(hello.job) || !is_name(hello.dialer) || !is_name(hello.listener))
    return fail(Errc::corruption, "read hello: a name is empty or does not print");
  return hello;
}

// Everything that both know when a proof is made. `listener_boot` is 0 in the dialer's proof.
std::vector<std::byte> transcript(Role role, const PeerHello& hello, const Proof& challenge,
                                  std::uint64_t listener_boot) {
  format::Writer writer;
  writer.string(key_salt);
  writer.u16(peer_protocol_version);
  writer.u8(static_cast<std::uint8_t>(role));
  writer.string(role == Role::dialer ? "dialer" : "listener");
  writer.raw(encode(hello));
  writer.raw(challenge);
  writer.u64(listener_boot);
  return writer.take();
}

Proof prove(Role role, const Secret& secret, const PeerHello& hello, const Proof& challenge,
            std::uint64_t listener_boot) {
  format::Writer info;
  info.u8(static_cast<std::uint8_t>(role));
  info.string(hello.job);
  info.string(hello.dialer);
  info.string(hello.listener);
  const Proof key = derive_key(secret.bytes(), key_salt, info.take());
  return make_proof(key, transcript(role, hello, challenge, listener_boot));
}

// A listener that does not know the job does the same work, with a secret that nobody has.
const Secret& secret_of_nobody() {
  static const Secret secret = Secret::make(random_bytes()).value();
  return secret;
}

Message make_message(FrameKind kind, std::vector<std::byte> body) {
  Message message;
  message.kind = kind;
  message.body = std::move(body);
  return message;
}

// Sends the reason to the dialer, if the connection lets us, and returns the error.
Task<PeerIdentity> refuse(std::shared_ptr<Connection> connection, Error why, std::string reason,
                          Time deadline) {
  Refusal refusal;
  refusal.code = why.code();
  refusal.reason = std::move(reason);
  Message message = make_message(FrameKind::refused, encode(refusal));
  auto sent = co_await write_message(*connection, std::move(message), deadline);
  connection->close();
  // A reason that could not be sent changes nothing: the refusal is the answer.
  static_cast<void>(sent);
  co_return fail(std::move(why));
}

Result<Proof> decode_challenge(const Message& message, const std::string& remote) {
  if (message.kind == FrameKind::refused) return fail(decode_refusal(message.body, remote));
  if (message.kind != FrameKind::challenge)
    return fail(Errc::corruption, fmt::format("greet {}: it answered hello with {}", remote,
                                              to_string(message.kind)));
  format::Reader reader(message.body, "challenge");
  const Proof challenge = read_proof(reader);
  CKPT_CHECK(reader.finish());
  return challenge;
}

// Step 5.
Result<PeerIdentity> check_welcome(const Message& message, const Secret& secret,
                                   const PeerHello& hello, const Proof& challenge,
                                   const std::string& remote) {
  if (message.kind == FrameKind::refused) return fail(decode_refusal(message.body, remote));
  if (message.kind != FrameKind::welcome)
    return fail(Errc::corruption, fmt::format("greet {}: it answered the proof with {}", remote,
                                              to_string(message.kind)));
  format::Reader reader(message.body, "welcome");
  const std::uint64_t boot = reader.u64();
  const Proof claimed = read_proof(reader);
  CKPT_CHECK(reader.finish());
  if (!is_same(claimed, prove(Role::listener, secret, hello, challenge, boot)))
    return fail(Errc::invalid_argument,
                fmt::format("greet {}: it did not prove that it has the secret of job {}", remote,
                            hello.job));
  PeerIdentity peer;
  peer.job = hello.job;
  peer.node = hello.listener;
  peer.boot = boot;
  peer.protocol_version = peer_protocol_version;
  peer.purpose = hello.purpose;
  return peer;
}

Task<PeerIdentity> dial(std::shared_ptr<Connection> connection, DialerOptions options,
                        Time deadline) {
  // Step 1.
  PeerHello hello;
  hello.job = options.job;
  hello.dialer = options.node;
  hello.listener = options.peer_node;
  hello.boot = options.boot;
  hello.purpose = options.purpose;
  hello.nonce = options.make_nonce();
  Message first = make_message(FrameKind::hello, encode(hello));
  CKPT_CO_CHECK(co_await write_message(*connection, std::move(first), deadline));
  CKPT_CO_TRY(const Message answer,
              co_await read_message(*connection, deadline, handshake_body_bytes_max));
  CKPT_CO_TRY(const Proof challenge, decode_challenge(answer, connection->remote()));
  // Step 3.
  const Proof proof = prove(Role::dialer, *options.secret, hello, challenge, 0);
  Message second =
      make_message(FrameKind::proof, std::vector<std::byte>(proof.begin(), proof.end()));
  CKPT_CO_CHECK(co_await write_message(*connection, std::move(second), deadline));
  CKPT_CO_TRY(const Message last,
              co_await read_message(*connection, deadline, handshake_body_bytes_max));
  co_return check_welcome(last, *options.secret, hello, challenge, connection->remote());
}

struct Greeted {  // The listener's knowledge of a dialer.
  PeerHello hello;
  Proof challenge{};
};

// Step 4, its first half. Errors: invalid_argument, with one text for all causes.
Status check_proof(const Message& message, const Secret* secret, const Greeted& greeted) {
  format::Reader reader(message.body, "proof");
  const Proof claimed = read_proof(reader);
  const bool is_whole = message.kind == FrameKind::proof && reader.finish().has_value();
  const Secret& used = secret ? *secret : secret_of_nobody();
  const bool is_right =
      is_same(claimed, prove(Role::dialer, used, greeted.hello, greeted.challenge, 0));
  if (!is_whole || !is_right || !secret)
    return fail(Errc::invalid_argument,
                fmt::format("node {} of job {} did not prove itself: {}", greeted.hello.dialer,
                            greeted.hello.job, refused_job_or_secret));
  return Status();
}

PeerIdentity identity_of(const PeerHello& hello) {
  PeerIdentity peer;
  peer.job = hello.job;
  peer.node = hello.dialer;
  peer.boot = hello.boot;
  peer.protocol_version = peer_protocol_version;
  peer.purpose = hello.purpose;
  return peer;
}

Task<PeerHello> read_hello(std::shared_ptr<Connection> connection, Time deadline) {
  CKPT_CO_TRY(const Message message,
              co_await read_message(*connection, deadline, handshake_body_bytes_max));
  if (message.kind != FrameKind::hello)
    co_return fail(Errc::corruption, fmt::format("greet {}: it began with {} and not with hello",
                                                 connection->remote(), to_string(message.kind)));
  co_return decode_hello(message.body);
}

Task<PeerIdentity> listen(std::shared_ptr<Connection> connection,
                          std::shared_ptr<const ListenerOptions> options, Time deadline) {
  auto hello = co_await read_hello(connection, deadline);
  if (!hello) {
    // Another version gets an answer: it shows the dialer our version.
    Error why = std::move(hello).error();
    if (why.code() != Errc::version_mismatch) co_return fail(std::move(why));
    std::string reason = why.text();
    auto refused = co_await refuse(connection, std::move(why), std::move(reason), deadline);
    co_return refused;
  }
  // Step 2.
  Greeted greeted;
  greeted.hello = std::move(hello).value();
  greeted.challenge = options->make_nonce();
  Message challenge =
      make_message(FrameKind::challenge,
                   std::vector<std::byte>(greeted.challenge.begin(), greeted.challenge.end()));
  CKPT_CO_CHECK(co_await write_message(*connection, std::move(challenge), deadline));
  CKPT_CO_TRY(const Message message,
              co_await read_message(*connection, deadline, handshake_body_bytes_max));
  // Step 4.
  const std::shared_ptr<const Secret> secret = options->find_secret(greeted.hello.job);
  auto checked = check_proof(message, secret.get(), greeted);
  if (!checked) {
    Error why = std::move(checked).error();
    std::string reason(refused_job_or_secret);
    auto refused = co_await refuse(connection, std::move(why), std::move(reason), deadline);
    co_return refused;
  }
  const Self self = options->find_self(greeted.hello.job);
  if (self.node != greeted.hello.listener) {
    std::string reason = fmt::format("this is node {}, not {}", self.node, greeted.hello.listener);
    Error why(Errc::unavailable, "answered node " + greeted.hello.dialer + ": " + reason);
    auto refused = co_await refuse(connection, std::move(why), std::move(reason), deadline);
    co_return refused;
  }
  format::Writer welcome;
  welcome.u64(self.boot);
  welcome.raw(prove(Role::listener, *secret, greeted.hello, greeted.challenge, self.boot));
  Message last = make_message(FrameKind::welcome, welcome.take());
  CKPT_CO_CHECK(co_await write_message(*connection, std::move(last), deadline));
  co_return identity_of(greeted.hello);
}

}  // namespace

Task<PeerIdentity> greet_as_dialer(std::shared_ptr<Connection> connection, DialerOptions options,
                                   Time deadline) {
  CKPT_ASSERT(options.secret != nullptr);
  const std::string whom = options.peer_node;
  auto peer = co_await dial(connection, std::move(options), deadline);
  if (!peer) {
    connection->close();
    co_return fail(std::move(peer).error().context("greet node " + whom));
  }
  co_return peer;
}

Task<PeerIdentity> greet_as_listener(std::shared_ptr<Connection> connection,
                                     std::shared_ptr<const ListenerOptions> options,
                                     Time deadline) {
  auto peer = co_await listen(connection, std::move(options), deadline);
  if (!peer) {
    connection->close();
    co_return fail(std::move(peer).error().context("greet " + connection->remote()));
  }
  co_return peer;
}

}  // namespace ckpt::wire
