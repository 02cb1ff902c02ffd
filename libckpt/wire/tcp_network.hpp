// TcpNetwork: the real Network: TCP over IPv4 and IPv6.
//
// Threads: the executor's. Lifetime: the clock outlives the network and all that it made.
#pragma once

#include "wire/tcp_connection.hpp"

namespace ckpt::wire {

class TcpNetwork : public Network {
 public:
  TcpNetwork(asio::any_io_executor executor, Clock& clock, TcpOptions options = {});

  // Binds exactly this host; port 0 lets the kernel choose. Names are looked up off the thread.
  // Errors: invalid_argument (no address of this machine, an unknown name), unavailable (in use),
  // io.
  Task<std::unique_ptr<Listener>> listen(std::string address, Time deadline) override;
  // Names are looked up off the thread; each address found gets its share of the time.
  // Errors: invalid_argument, unavailable.
  Task<std::shared_ptr<Connection>> connect(std::string address, Time deadline) override;
  std::shared_ptr<Connection> adopt(std::shared_ptr<Connection> connection) override;

 private:
  asio::any_io_executor executor_;
  Clock& clock_;
  TcpOptions options_;
};

}  // namespace ckpt::wire
