// Goal:   work for the processor runs on threads of its own while the executor does something else,
//         and what was queued is done before they go.
// Method: the work waits until the executor has run something behind it.
#include "os/hash_threads.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "support/run_task.hpp"

namespace ckpt::os {

TEST_CASE("hash threads: the executor goes on meanwhile", "[unit][os]") {
  asio::io_context context;
  HashThreads threads;
  std::promise<void> others_ran;
  std::thread::id ran_on;
  const std::thread::id here = std::this_thread::get_id();
  asio::post(context, [&] { others_ran.set_value(); });
  const Status done = test::run_task(context, threads.run([&] {
    others_ran.get_future().wait();
    ran_on = std::this_thread::get_id();
  }));
  REQUIRE(done);
  REQUIRE(ran_on != here);
}

TEST_CASE("hash threads: a checksum is that of crc32, whatever came before", "[unit][os]") {
  asio::io_context context;
  HashThreads threads;
  std::vector<std::byte> bytes(100'001, std::byte{7});
  const std::span<const std::byte> all(bytes);
  Compute* const where = GENERATE_REF(static_cast<Compute*>(&threads), nullptr);
  const auto first = test::run_task(context, crc32_on(where, all.first(1000)));
  REQUIRE(first);
  const auto whole = test::run_task(context, crc32_on(where, all.subspan(1000), *first));
  REQUIRE(whole);
  REQUIRE(*whole == crc32(all));
}

}  // namespace ckpt::os
