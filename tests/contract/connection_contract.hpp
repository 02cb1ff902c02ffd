// ConnectionContract: the guarantees of every Network to the rest of libckpt.
//
// Goal:   whatever holds for the simulated network holds for TCP, so that what the simulator shows
//         is worth something.
// Method: each case takes a world, real or simulated, and uses only the seam.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

#include "base/units.hpp"
#include "contract/connection_world.hpp"

namespace ckpt::test {

inline void check_bytes_arrive_in_order(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  for (const std::size_t size : {0u, 1u, 4095u, 4096u, 4097u, (1u << 20) + 1u}) {
    const auto sent = random_bytes(size, size);
    for (const bool forth : {true, false}) {
      std::vector<std::byte> got(size);
      const auto& from = forth ? pair.near : pair.far;
      const auto& to = forth ? pair.far : pair.near;
      auto writing = start(world.context(), from->write(sent, world.soon()));
      const Status read = world.run(to->read(got, world.soon()));
      INFO("size " << size);
      REQUIRE(read);
      REQUIRE(world.finish(std::move(writing)));
      REQUIRE(got == sent);
    }
  }
}

// The descriptor's bytes, and not those of the memory beside it, are what is sent.
inline void check_file_spans_arrive(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  const std::size_t size = 3 * MiB + 17;
  const int fd = ::memfd_create("contract", MFD_CLOEXEC);
  REQUIRE(fd >= 0);
  REQUIRE(::ftruncate(fd, static_cast<off_t>(size + page_bytes)) == 0);
  void* mapped = ::mmap(nullptr, size + page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(mapped != MAP_FAILED);
  const auto sent = random_bytes(size, 7);
  std::byte* begin = static_cast<std::byte*>(mapped) + 100;
  std::copy(sent.begin(), sent.end(), begin);
  for (const int used : {fd, -1}) {
    os::FileSpan span;
    span.bytes = std::span<const std::byte>(begin, size);
    span.fd = used;
    span.offset = 100;
    std::vector<std::byte> got(size);
    auto writing = start(world.context(), pair.near->write_file(span, world.soon()));
    REQUIRE(world.run(pair.far->read(got, world.soon())));
    REQUIRE(world.finish(std::move(writing)));
    REQUIRE(got == sent);
  }
  ::munmap(mapped, size + page_bytes);
  ::close(fd);
}

inline void check_deadlines_end_reads(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  std::vector<std::byte> got(10);
  const std::vector<std::byte> half(5);
  REQUIRE(world.run(pair.far->write(half, world.soon())));
  const Status late = world.run(pair.near->read(got, world.at_once()));
  REQUIRE_FALSE(late);
  REQUIRE(late.error().code() == Errc::unavailable);
  // Where in the stream we are, nobody knows: it is closed, also for the peer.
  REQUIRE_FALSE(world.run(pair.near->read(got, world.soon())));
  REQUIRE_FALSE(world.run(pair.near->write(got, world.soon())));
  const Status peer = world.run(pair.far->read(got, world.soon()));
  REQUIRE_FALSE(peer);
  REQUIRE(peer.error().code() == Errc::unavailable);
}

inline void check_deadlines_end_writes(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  const std::vector<std::byte> much(64 * MiB);  // More than any kernel takes for a silent peer.
  const Status late = world.run(pair.near->write(much, world.at_once()));
  REQUIRE_FALSE(late);
  REQUIRE(late.error().code() == Errc::unavailable);
}

inline void check_close_ends_what_is_in_flight(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  std::vector<std::byte> got(10);
  auto reading = start(world.context(), pair.near->read(got, no_deadline));
  world.context().poll();
  REQUIRE_FALSE(reading.is_done());
  pair.near->close();
  pair.near->close();  // Twice is once.
  const Status ended = world.finish(std::move(reading));
  REQUIRE_FALSE(ended);
  REQUIRE(ended.error().code() == Errc::cancelled);
  const Status after = world.run(pair.near->write(got, world.soon()));
  REQUIRE_FALSE(after);
  REQUIRE(after.error().code() == Errc::cancelled);
}

inline void check_what_was_sent_before_close_arrives(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  const auto sent = random_bytes(1000, 3);
  REQUIRE(world.run(pair.near->write(sent, world.soon())));
  pair.near->close();
  std::vector<std::byte> got(1000);
  REQUIRE(world.run(pair.far->read(got, world.soon())));
  REQUIRE(got == sent);
  const Status ended = world.run(pair.far->read(got, world.soon()));
  REQUIRE_FALSE(ended);
  REQUIRE(ended.error().code() == Errc::unavailable);
}

// A writer learns that nobody reads any more, and no signal ends the process.
inline void check_writing_to_a_closed_peer_fails(ConnectionWorld& world) {
  const ConnectionPair pair = join(world);
  pair.far->close();
  const auto bytes = random_bytes(1 << 20, 5);
  os::FileSpan span;
  span.bytes = bytes;
  Status wrote;
  for (int round = 0; round < 100 && wrote; ++round)
    wrote = world.run(pair.near->write_file(span, world.soon()));
  REQUIRE_FALSE(wrote);
  REQUIRE(wrote.error().code() == Errc::unavailable);
}

inline void check_nobody_answers(ConnectionWorld& world) {
  auto listening = world.listen(world.listen_address());
  REQUIRE(listening);
  const std::string address = (*listening)->address();
  (*listening)->close();
  const auto refused = world.run(world.dialer().connect(address, world.soon()));
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code() == Errc::unavailable);
  REQUIRE(refused.error().text().find(address) != std::string::npos);
}

inline void check_an_address_is_taken_once(ConnectionWorld& world) {
  auto first = world.listen(world.listen_address());
  REQUIRE(first);
  const auto second = world.listen((*first)->address());
  REQUIRE_FALSE(second);
  REQUIRE(second.error().code() == Errc::unavailable);
  const std::string address = (*first)->address();
  first.value().reset();
  REQUIRE(world.listen(address));
}

inline void check_closing_a_listener_ends_accept(ConnectionWorld& world) {
  auto listening = world.listen(world.listen_address());
  REQUIRE(listening);
  auto accepting = start(world.context(), (*listening)->accept());
  world.context().poll();
  REQUIRE_FALSE(accepting.is_done());
  (*listening)->close();
  const auto ended = world.finish(std::move(accepting));
  REQUIRE_FALSE(ended);
  REQUIRE(ended.error().code() == Errc::cancelled);
}

// The simulator kills a node by destroying its io_context: under asan this shows what dangles.
inline void check_a_context_may_go_first(std::unique_ptr<ConnectionWorld> world) {
  auto pair = std::make_unique<ConnectionPair>(join(*world));
  const auto got = std::make_shared<std::vector<std::byte>>(10);
  auto reading = start(world->context(), pair->near->read(*got, world->soon()));
  auto accepting = start(world->context(), pair->listener->accept());
  world->context().poll();
  REQUIRE_FALSE(reading.is_done());
  REQUIRE_FALSE(accepting.is_done());
  pair.reset();
  world.reset();
  REQUIRE_FALSE(reading.is_done());
}

}  // namespace ckpt::test
