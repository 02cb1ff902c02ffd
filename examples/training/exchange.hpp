// Exchange: adds up the gradients of the example's ranks and shares their weights, in a fixed
// order.
//
// A star over TCP: rank 0 receives from all ranks, in their order, and answers all. It stands for
// the collectives of a real trainer, and like them it fails when a rank dies: the job then
// restarts. Every wait has the deadline given to open(). Threads: one.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace example {

struct ExchangeOptions {
  std::string address;  // "host:port" where rank 0 listens; empty: no exchange.
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::chrono::milliseconds deadline{30'000};
};

class Exchange {
 public:
  // Returns when all ranks are connected.
  // Errors: invalid_argument (the address), unavailable (a rank did not come in time).
  static ckpt::Result<Exchange> open(const ExchangeOptions& options);

  Exchange(Exchange&& other) noexcept;
  Exchange& operator=(Exchange&&) = delete;
  ~Exchange();

  // Afterwards all ranks have the same sums. Errors: unavailable (a rank died, or the deadline).
  ckpt::Status sum(std::span<float> values);
  // Rank r provides the values up to ends[r]; afterwards all ranks have all of them. Errors: as
  // sum.
  ckpt::Status gather(std::span<float> values, const std::vector<std::size_t>& ends);

 private:
  explicit Exchange(const ExchangeOptions& options) : options_(options) {}

  ckpt::Status accept_all(int listener);
  ckpt::Status connect_root();
  ckpt::Status send_all(int socket, std::span<const std::byte> bytes);
  ckpt::Status receive_all(int socket, std::span<std::byte> bytes);

  ExchangeOptions options_;
  std::vector<int> sockets_;  // Rank 0: by rank, its own -1. Others: the one to rank 0.
};

}  // namespace example
