// Goal:   the ring completes every request exactly once, with what the kernel said, and never
//         confuses one request with another.
// Method: more requests than places, requests on bad descriptors between good ones, reads at the
//         end of a file, and a ring that is destroyed with requests in flight.
#include "os/ring.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>

namespace ckpt::test {

using os::Ring;
using os::RingRequest;
using os::RingVerb;

namespace {

// The completions; lives until all have come.
class Results {
 public:
  explicit Results(std::size_t count) : results_(count), times_(count) {}

  std::unique_ptr<os::Completion> completion(std::size_t index) {
    return std::make_unique<One>(*this, index);
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ == results_.size(); });
  }
  std::int64_t result(std::size_t index) const { return results_[index]; }
  int times(std::size_t index) const { return times_[index]; }

 private:
  class One : public os::Completion {
   public:
    One(Results& all, std::size_t index) : all_(all), index_(index) {}
    void complete(std::int64_t result) override {
      const std::lock_guard lock(all_.mutex_);
      all_.results_[index_] = result;
      ++all_.times_[index_];
      ++all_.done_;
      all_.changed_.notify_all();
    }

   private:
    Results& all_;
    std::size_t index_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> results_;
  std::vector<int> times_;
  std::size_t done_ = 0;
};

// Null where io_uring is refused.
std::unique_ptr<Ring> open_ring(unsigned depth) {
  auto ring = Ring::open(os::DiskPriority::normal, depth);
  if (!ring) {
    REQUIRE(ring.error().code() == Errc::unsupported);
    WARN(ring.error().message());
    return nullptr;
  }
  return std::move(ring).value();
}

RingRequest request_of(RingVerb verb, int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  RingRequest request;
  request.verb = verb;
  request.fd = fd;
  request.offset = offset;
  request.bytes = bytes.size();
  request.address = bytes.data();
  return request;
}

}  // namespace

TEST_CASE("ring: many requests each end once, with their own result", "[unit][os]") {
  for (const unsigned depth : {1u, 2u, 64u}) {
    const auto ring = open_ring(depth);
    if (!ring) return;
    const os::Fd file(::memfd_create("ring-test", MFD_CLOEXEC));
    constexpr std::size_t count = 500;
    constexpr std::size_t bytes = 100;
    std::vector<std::byte> source(count * bytes);
    for (std::size_t at = 0; at < source.size(); ++at) source[at] = std::byte(at * 7 + at / 251);
    Results written(count);
    for (std::size_t index = 0; index < count; ++index) {
      const int fd = index % 10 == 3 ? -1 : file.number();
      auto request = request_of(RingVerb::write, fd, index * bytes,
                                std::span(source).subspan(index * bytes, bytes));
      request.completion = written.completion(index);
      ring->submit(std::move(request));
    }
    written.wait_for_all();
    std::vector<std::byte> target(bytes);
    for (std::size_t index = 0; index < count; ++index) {
      REQUIRE(written.times(index) == 1);
      REQUIRE(written.result(index) == (index % 10 == 3 ? -EBADF : static_cast<int>(bytes)));
      if (index % 10 == 3) continue;
      Results read(1);
      auto request = request_of(RingVerb::read, file.number(), index * bytes, target);
      request.completion = read.completion(0);
      ring->submit(std::move(request));
      read.wait_for_all();
      REQUIRE(std::memcmp(target.data(), source.data() + index * bytes, bytes) == 0);
    }
  }
}

TEST_CASE("ring: a read at the end of the file gives what there is", "[unit][os]") {
  const auto ring = open_ring(4);
  if (!ring) return;
  const os::Fd file(::memfd_create("ring-test", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.number(), 5'000) == 0);
  std::vector<std::byte> target(8'192);
  Results read(3);
  const std::uint64_t offsets[] = {0, 4'999, 5'000};
  for (std::size_t index = 0; index < 3; ++index) {
    auto request = request_of(RingVerb::read, file.number(), offsets[index], target);
    request.completion = read.completion(index);
    ring->submit(std::move(request));
  }
  read.wait_for_all();
  REQUIRE(read.result(0) == 5'000);
  REQUIRE(read.result(1) == 1);
  REQUIRE(read.result(2) == 0);
}

TEST_CASE("ring: its end waits for what was submitted", "[unit][os]") {
  auto ring = open_ring(2);
  if (!ring) return;
  const os::Fd file(::memfd_create("ring-test", MFD_CLOEXEC));
  constexpr std::size_t count = 100;
  std::vector<std::byte> source(4'096);
  Results done(count);
  for (std::size_t index = 0; index < count; ++index) {
    const auto verb = index % 3 == 0 ? RingVerb::sync_data : RingVerb::write;
    auto request = request_of(verb, file.number(), index * source.size(), source);
    request.completion = done.completion(index);
    ring->submit(std::move(request));
  }
  ring.reset();
  for (std::size_t index = 0; index < count; ++index) REQUIRE(done.times(index) == 1);
}

}  // namespace ckpt::test
