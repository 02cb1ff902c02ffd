// ConnectionWorld: two ends of a network, and what makes their time pass: all that a case of the
// contract may use.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "support/pending.hpp"
#include "support/random_bytes.hpp"
#include "wire/connection.hpp"

namespace ckpt::test {

class ConnectionWorld {
 public:
  virtual ~ConnectionWorld() = default;
  virtual asio::io_context& context() = 0;
  virtual Clock& clock() = 0;
  virtual wire::Network& dialer() = 0;
  virtual wire::Network& host() = 0;
  virtual std::string listen_address() const = 0;  // With port 0.
  virtual void pass() = 0;                         // Lets the next thing happen.

  template <class T>
  Result<T> finish(Pending<T> pending) {
    context().restart();
    context().poll();
    while (!pending.is_done()) pass();
    return std::move(pending.result());
  }
  template <class T>
  Result<T> run(Task<T> task) {
    return finish(start(context(), std::move(task)));
  }
  Result<std::unique_ptr<wire::Listener>> listen(const std::string& address) {
    return run(host().listen(address, soon()));
  }
  Time soon() const { return const_cast<ConnectionWorld*>(this)->clock().after(long_enough); }
  Time at_once() {  // Soon, in real time; later than anything that is only slow.
    return clock().after(std::chrono::milliseconds(30));
  }

  static constexpr Duration long_enough = std::chrono::seconds(30);
};

struct ConnectionPair {
  std::unique_ptr<wire::Listener> listener;
  std::shared_ptr<wire::Connection> near;
  std::shared_ptr<wire::Connection> far;
};

inline ConnectionPair join(ConnectionWorld& world) {
  ConnectionPair pair;
  auto listening = world.listen(world.listen_address());
  REQUIRE(listening);
  pair.listener = std::move(listening).value();
  auto accepting = start(world.context(), pair.listener->accept());
  auto dialed = world.run(world.dialer().connect(pair.listener->address(), world.soon()));
  REQUIRE(dialed);
  pair.near = *dialed;
  auto accepted = world.finish(std::move(accepting));
  REQUIRE(accepted);
  pair.far = *accepted;
  return pair;
}

}  // namespace ckpt::test
