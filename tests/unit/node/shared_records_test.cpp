// Goal:   ranks of a node that restore together fetch each record once, and a reader that hangs or
//         fails leaves the others what they need to go on. They share connections to a peer.
// Method: readers that ask for one record while the first one's fetch is held up; a peer whose
//         connections are counted.
#include "node/shared_records.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "support/fake_clock.hpp"
#include "support/pending.hpp"

namespace ckpt::node {
namespace {

using Record = SharedRecords::Record;

struct Readers {
  // Ends when `may_end`, with the record or the error.
  Task<Record> fetch(std::uint32_t rank) {
    ++fetches;
    while (!may_end) CKPT_CO_CHECK(co_await sleep_until(clock, clock.after(step)));
    if (failure) co_return fail(Error(*failure));
    auto record = std::make_shared<format::ShardRecord>();
    record->id.rank = rank;
    record->chunk_crcs.resize(crcs);
    co_return record;
  }
  test::Pending<Record> ask(std::uint32_t rank) {
    SharedRecords::Fetch by = [this](std::uint32_t each) { return fetch(each); };
    auto asked = test::start(context, records.find_or_fetch(rank, std::move(by)));
    clock.poll();
    return asked;
  }

  static constexpr Duration step = std::chrono::seconds(1);
  asio::io_context context;
  test::FakeClock clock{context};
  SharedRecords records{clock};
  std::optional<Error> failure;
  std::size_t crcs = 1;
  bool may_end = false;
  int fetches = 0;
};

}  // namespace

TEST_CASE_METHOD(Readers, "shared records: readers of one record wait for the first one's fetch",
                 "[unit][node]") {
  const bool does_fit = GENERATE(true, false);
  if (!does_fit) crcs = kept_records_bytes_max / sizeof(Crc32);
  auto first = ask(7);
  auto second = ask(7);
  auto third = ask(7);
  auto other = ask(8);
  CHECK(fetches == 2);
  may_end = true;
  const auto record = test::finish(clock, first);
  REQUIRE(record);
  CHECK(test::finish(clock, second).value() == *record);
  CHECK(test::finish(clock, third).value() == *record);
  CHECK(test::finish(clock, other).value()->id.rank == 8);
  CHECK(fetches == 2);
  auto later = ask(7);
  CHECK(test::finish(clock, later).value()->id.rank == 7);
  CHECK(fetches == (does_fit ? 2 : 3));
}

TEST_CASE_METHOD(Readers, "shared records: an error is told to those that wait, and not kept",
                 "[unit][node]") {
  failure.emplace(Errc::unavailable, "the peer is gone");
  auto first = ask(7);
  auto second = ask(7);
  may_end = true;
  CHECK(test::finish(clock, first).error().code() == Errc::unavailable);
  CHECK(test::finish(clock, second).error().text() == "the peer is gone");
  CHECK(fetches == 1);
  failure.reset();
  auto again = ask(7);
  CHECK(test::finish(clock, again));
  CHECK(fetches == 2);
}

TEST_CASE_METHOD(Readers, "shared records: those that wait for one that hangs try by themselves",
                 "[unit][node]") {
  auto first = ask(7);
  auto second = ask(7);
  CHECK(fetches == 1);
  for (int seconds = 0; seconds < 20; ++seconds) clock.advance(step);
  CHECK(fetches == 2);
  may_end = true;
  CHECK(test::finish(clock, second));
  CHECK(test::finish(clock, first));
}

namespace {

struct FakeLine final : wire::Connection {
  Task<void> read(std::span<std::byte>, Time) override { co_return Status(); }
  Task<void> write(std::span<const std::byte>, Time) override { co_return Status(); }
  Task<void> write_file(os::FileSpan, Time) override { co_return Status(); }
  void close() override { is_closed = true; }
  std::string remote() const override { return "B"; }
  bool is_closed = false;
};

// A peer whose answers take a second each.
struct SlowPeer {
  Task<SharedRecords::Connection> dial() {
    ++dials;
    lines.push_back(std::make_shared<FakeLine>());
    co_return SharedRecords::Connection(lines.back());
  }
  Task<Record> answer(SharedRecords::Connection line) {
    ++asks;
    in_use_max = std::max(in_use_max, ++in_use);
    CKPT_CO_CHECK(co_await sleep_until(clock, clock.after(delay)));
    --in_use;
    if (dynamic_cast<FakeLine&>(*line).is_closed)
      co_return fail(Errc::unavailable, "the peer has closed it");
    co_return std::make_shared<format::ShardRecord>();
  }
  test::Pending<Record> ask() {
    auto asked = test::start(
        context, records->ask_peer(
                     "B", [this] { return dial(); },
                     [this](SharedRecords::Connection line) { return answer(std::move(line)); }));
    clock.poll();
    return asked;
  }

  Duration delay = std::chrono::seconds(1);
  asio::io_context context;
  test::FakeClock clock{context};
  std::optional<SharedRecords> records{clock};
  std::vector<std::shared_ptr<FakeLine>> lines;
  std::size_t dials = 0, asks = 0, in_use = 0, in_use_max = 0;
};

}  // namespace

TEST_CASE_METHOD(SlowPeer, "shared records: those of one peer come over few connections",
                 "[unit][node]") {
  std::vector<test::Pending<Record>> asked;
  for (int count = 0; count < 16; ++count) asked.push_back(ask());
  for (test::Pending<Record>& each : asked) CHECK(test::finish(clock, each));
  CHECK(dials == SharedRecords::lines_max);
  CHECK(in_use_max == SharedRecords::lines_max);
  auto later = ask();
  CHECK(test::finish(clock, later));
  CHECK(dials == SharedRecords::lines_max);
  records.reset();
  CHECK(std::ranges::all_of(lines, [](const auto& line) { return line->is_closed; }));
}

TEST_CASE_METHOD(SlowPeer, "shared records: connections that the peer closed are made anew, once",
                 "[unit][node]") {
  auto first = ask();
  auto second = ask();
  CHECK(test::finish(clock, first));
  CHECK(test::finish(clock, second));
  CHECK(dials == 2);
  for (const auto& line : lines) line->close();
  auto again = ask();
  CHECK(test::finish(clock, again));
  CHECK(dials == 3);
  auto third = ask();
  auto fourth = ask();
  CHECK(test::finish(clock, third));
  CHECK(test::finish(clock, fourth));
  CHECK(dials == 4);
  CHECK(asks == 6);  // One of them in vain.
}

TEST_CASE_METHOD(SlowPeer, "shared records: a reader does not wait forever for a connection",
                 "[unit][node]") {
  delay = std::chrono::hours(1);
  std::vector<test::Pending<Record>> asked;
  for (std::size_t count = 0; count < SharedRecords::lines_max; ++count) asked.push_back(ask());
  auto late = ask();
  CHECK(dials == SharedRecords::lines_max);
  delay = std::chrono::seconds(1);
  CHECK(test::finish(clock, late));
  CHECK(dials == SharedRecords::lines_max + 1);
  CHECK_FALSE(asked.front().is_done());
  for (test::Pending<Record>& each : asked) CHECK(test::finish(clock, each));
}

}  // namespace ckpt::node
