// Start: how a group of sessions begins: from which step, on which new timeline, and who holds it.
//
// It grows with the number of ranks. So reports and decrees only refer to it, by the digest of its
// encoding, and it is sent once. In memory all that refer to one share it.
#pragma once

#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "format/shard_record.hpp"

namespace ckpt::format {

// StartOutcome: the end of a Start. It is pending until every rank has its shard.
class StartOutcome {
 public:
  StartOutcome() = default;  // Pending.
  // Every rank is ready: restore() may return.
  static StartOutcome go() { return {State::go, Errc{}}; }
  // restore() fails with `error`, which is not zero.
  static StartOutcome failed(Errc error);

  bool is_pending() const { return state_ == State::pending; }
  bool is_go() const { return state_ == State::go; }
  bool has_failed() const { return state_ == State::failed; }
  Errc error() const { return error_; }  // Zero unless it has failed.
  bool operator==(const StartOutcome&) const = default;

 private:
  enum class State : std::uint8_t { pending, go, failed };
  StartOutcome(State state, Errc error) : state_(state), error_(error) {}

  State state_ = State::pending;
  Errc error_{};
};

// Ends the reason of a restore that passed over a newer step, or another, for its damage. The
// trainer warns of it then.
inline constexpr std::string_view repair_advice =
    "`ckpt verify --repair STEP --from COPY` mends it where a copy is whole (but for a damaged "
    "manifest: put the whole copy in its place)";

// The reason of a start without a base, where no node has seen any step.
inline constexpr std::string_view nothing_seen = "there is no checkpoint yet";

struct Start {
  std::uint64_t start_id = 0;  // Random.
  std::uint64_t attempt = 0;
  std::uint64_t timeline = 0;  // The new one.
  std::optional<StepId> base;  // None: nothing to restore, or nobody asked.
  StartOutcome outcome;
  // Why it has failed; else why this step, why not a newer one; for people.
  std::string reason;
  std::vector<std::uint64_t> sessions;  // By rank.
  std::vector<Digest> digests;          // The shards of `base`, by the ranks that saved it.
  // Likewise: nodes with a copy in memory, its own node first; empty: it is read from storage.
  std::vector<std::vector<std::string>> holders;
  bool from_storage = false;                // Some rank reads its shard from storage.
  SourceChoice source = SourceChoice::any;  // All ranks take their shards from there.
  // The newest step that training is known to have reached on the way from `base`; none: unknown.
  std::optional<Step> newest_seen;

  // Another number of ranks saved `base`: each rank puts its shard together from their pieces.
  bool is_of_others() const { return base && digests.size() != sessions.size(); }
  bool operator==(const Start&) const = default;
};

std::vector<std::byte> encode(const Start& start);
// Errors: corruption, version_mismatch.
Result<Start> decode_start(std::span<const std::byte> bytes);

// SharedStart: a Start that does not change, or only the digest of one; takes the place of an
// optional. Copies share it, and two are equal when their digests are.
class SharedStart {
 public:
  SharedStart() = default;
  SharedStart(Start start);                       // NOLINT(google-explicit-constructor)
  SharedStart(const std::optional<Start>& start)  // NOLINT(google-explicit-constructor)
      : SharedStart(start ? SharedStart(*start) : SharedStart()) {}
  // A message named it, and its content has not been looked up yet.
  static SharedStart unknown(Digest digest);

  bool has_value() const { return digest_.has_value(); }
  explicit operator bool() const { return has_value(); }
  bool is_known() const { return content_ != nullptr; }
  const Digest& digest() const { return *digest_; }
  const Start& operator*() const;  // Only if it is known.
  const Start* operator->() const { return &**this; }
  // The bytes to send: shared as well.
  std::shared_ptr<const std::vector<std::byte>> encoded() const;
  void reset() { *this = SharedStart(); }
  bool operator==(const SharedStart& other) const { return digest_ == other.digest_; }

 private:
  struct Content;
  std::optional<Digest> digest_;
  std::shared_ptr<const Content> content_;
};

}  // namespace ckpt::format
