// Goal:   ranks of a node that restore together fetch each record once, and a reader that hangs or
//         fails leaves the others what they need to go on.
// Method: readers that ask for one record while the first one's fetch is held up.
#include "node/shared_records.hpp"

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

}  // namespace ckpt::node
