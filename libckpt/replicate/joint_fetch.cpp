#include "replicate/joint_fetch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/assert.hpp"
#include "base/signal.hpp"
#include "base/spawn.hpp"

namespace ckpt::replicate {

namespace {

// Chunks that a connection takes at a time. A few hide the way there and back; towards the end they
// get fewer, so that all connections end together.
constexpr std::size_t taken_min = 4;
constexpr std::size_t taken_max = 16;
// A copy with so many bad Chunks is bad all over, and each of them costs a connection.
constexpr std::size_t damaged_chunks_max = 16;

// Shared by the connections' coroutines, of which one may still dial when all Chunks are there.
class JointFetch : public std::enable_shared_from_this<JointFetch> {
 public:
  JointFetch(const std::vector<std::string>& holders, DialHolder dial, Clock& clock,
             std::shared_ptr<const format::ShardRecord> record, Destination target, ChunkSet have,
             TransferOptions options);

  Task<void> run();

 private:
  static DetachedTask run_connection(std::shared_ptr<JointFetch> self);
  Task<void> fetch_from(std::string holder);
  Task<void> fetch_some(wire::Connection& connection, std::vector<std::size_t> wanted);
  Task<void> fetch_good_from(std::string holder);
  std::vector<std::size_t> take();

  const DialHolder dial_;
  Clock& clock_;
  const std::shared_ptr<const format::ShardRecord> record_;
  const Destination target_;
  const TransferOptions options_;
  std::deque<std::string> to_ask_;  // One entry for each connection to be made.
  HolderFailures failures_;
  std::vector<bool> taken_;  // By Chunk: it is here, or a connection brings it.
  std::size_t untaken_count_;
  ChunkSet have_;
  std::size_t connections_ = 0;  // Those with a running coroutine.
  Signal changed_;
};

JointFetch::JointFetch(const std::vector<std::string>& holders, DialHolder dial, Clock& clock,
                       std::shared_ptr<const format::ShardRecord> record, Destination target,
                       ChunkSet have, TransferOptions options)
    : dial_(std::move(dial)),
      clock_(clock),
      record_(std::move(record)),
      target_(std::move(target)),
      options_(std::move(options)),
      taken_(record_->chunk_crcs.size(), false),
      untaken_count_(taken_.size() - have.count()),
      have_(std::move(have)),
      changed_(clock) {
  CKPT_ASSERT(have_.size() == taken_.size());
  for (std::size_t index = 0; index < taken_.size(); ++index) taken_[index] = have_.contains(index);
  for (std::size_t round = 0; round < connections_per_holder; ++round)
    to_ask_.insert(to_ask_.end(), holders.begin(), holders.end());
}

// Chunks for one connection, in rising order; none: all are taken.
std::vector<std::size_t> JointFetch::take() {
  const std::size_t fair = untaken_count_ / (2 * std::max<std::size_t>(connections_, 1));
  const std::size_t count = std::min(std::clamp(fair, taken_min, taken_max), untaken_count_);
  std::vector<std::size_t> wanted;
  for (std::size_t index = 0; wanted.size() < count; ++index) {
    if (taken_.at(index)) continue;
    taken_[index] = true;
    wanted.push_back(index);
  }
  untaken_count_ -= count;
  return wanted;
}

Task<void> JointFetch::fetch_some(wire::Connection& connection, std::vector<std::size_t> wanted) {
  ChunkSet unwanted(taken_.size());
  for (std::size_t index = 0, next = 0; index < taken_.size(); ++index) {
    if (next < wanted.size() && wanted[next] == index) {
      ++next;
    } else {
      unwanted.insert(index);
    }
  }
  TransferOptions options = options_;
  options.on_chunk = [this](std::size_t index) {
    have_.insert(index);
    if (options_.on_chunk) options_.on_chunk(index);
  };
  auto fetched = co_await fetch_shard(connection, clock_, record_, target_, std::move(unwanted),
                                      std::move(options));
  for (const std::size_t index : wanted) {
    if (have_.contains(index)) continue;
    taken_[index] = false;
    ++untaken_count_;
  }
  co_return fetched;
}

Task<void> JointFetch::fetch_from(std::string holder) {
  CKPT_CO_TRY(const auto connection, co_await dial_(std::move(holder)));
  Status fetched;
  while (fetched && !have_.is_full()) {
    std::vector<std::size_t> wanted = take();
    if (!wanted.empty()) {
      fetched = co_await fetch_some(*connection, std::move(wanted));
      changed_.notify_all();
    } else {  // The others bring the rest, or fail and leave it to us.
      const auto woken = co_await changed_.wait_until(no_deadline);
      if (!woken) fetched = fail(woken.error());
    }
  }
  connection->close();
  co_return fetched;
}

// Asks for each Chunk alone, since a connection ends with a damaged one. The others may be good,
// and nowhere else.
Task<void> JointFetch::fetch_good_from(std::string holder) {
  std::shared_ptr<wire::Connection> connection;
  std::size_t damaged = 0;
  for (std::size_t index = 0; index < taken_.size(); ++index) {
    if (have_.contains(index)) continue;
    if (!connection) {
      std::string name = holder;
      CKPT_CO_TRY(connection, co_await dial_(std::move(name)));
    }
    CKPT_ASSERT(!taken_[index]);
    taken_[index] = true;
    --untaken_count_;
    std::vector<std::size_t> wanted(1, index);
    const Status fetched = co_await fetch_some(*connection, std::move(wanted));
    if (fetched) continue;
    connection.reset();
    if (fetched.error().code() != Errc::corruption || ++damaged == damaged_chunks_max)
      co_return fetched;
  }
  if (connection) connection->close();
  co_return Status();
}

DetachedTask JointFetch::run_connection(std::shared_ptr<JointFetch> self) {
  while (!self->have_.is_full() && !self->to_ask_.empty()) {
    const std::string holder = std::move(self->to_ask_.front());
    self->to_ask_.pop_front();
    if (self->failures_.contains(holder)) continue;
    Status fetched = co_await self->fetch_from(holder);
    if (!fetched) self->failures_.add(holder, std::move(fetched).error());
  }
  CKPT_ASSERT(self->connections_ > 0);
  --self->connections_;
  self->changed_.notify_all();
}

Task<void> JointFetch::run() {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const std::size_t useful = div_ceil(untaken_count_, taken_min);
  connections_ = std::min({useful, to_ask_.size(), fetch_connections_max});
  for (std::size_t left = connections_; left > 0; --left)
    run_detached(executor, run_connection(shared_from_this()));
  // A connection writes only Chunks that are not here yet.
  while (!have_.is_full() && connections_ > 0) {
    CKPT_CO_TRY(const bool is_notified, co_await changed_.wait_until(no_deadline));
    CKPT_ASSERT(is_notified);
  }
  for (const std::string& holder : failures_.damaged()) {
    if (have_.is_full()) break;
    std::string name = holder;
    (void)co_await fetch_good_from(std::move(name));
  }
  if (!have_.is_full()) co_return fail(failures_.error());
  co_return Status();
}

}  // namespace

void HolderFailures::add(const std::string& holder, Error error) {
  const auto [found, is_new] = all_.try_emplace(holder, error);
  if (!is_new && found->second.code() == Errc::not_found) found->second = std::move(error);
}

std::vector<std::string> HolderFailures::damaged() const {
  std::vector<std::string> holders;
  for (const auto& [holder, error] : all_)
    if (error.code() == Errc::corruption) holders.push_back(holder);
  return holders;
}

Error HolderFailures::error() const {
  CKPT_ASSERT(!all_.empty());
  const auto is_other = [](const auto& it) { return it.second.code() != Errc::not_found; };
  const auto first = std::find_if(all_.begin(), all_.end(), is_other);
  if (all_.size() == 1 || first == all_.end()) return all_.begin()->second;
  std::string text;
  for (const auto& [holder, error] : all_)
    text += fmt::format("{}node {}: {}", text.empty() ? "" : "; ", holder, error.message());
  return Error(first->second.code(), text);
}

Task<void> fetch_jointly(std::vector<std::string> holders, DialHolder dial, Clock& clock,
                         std::shared_ptr<const format::ShardRecord> record, Destination target,
                         ChunkSet have, TransferOptions options) {
  CKPT_ASSERT(!holders.empty());
  const auto fetch =
      std::make_shared<JointFetch>(holders, std::move(dial), clock, std::move(record),
                                   std::move(target), std::move(have), std::move(options));
  auto fetched = co_await fetch->run();
  co_return fetched;
}

}  // namespace ckpt::replicate
