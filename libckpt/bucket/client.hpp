// Client: the requests to a server of buckets, each tried again until it is hopeless.
//
// Every request has time-outs and a bounded number of tries. Requests block threads of their own,
// and results come back to the caller's executor.
//
// Threads:  one executor; the requests run on `request_threads` others.
// Lifetime: spans given to a Task live until it ends. Destroy it before the executor's context.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "bucket/answers.hpp"
#include "bucket/bucket_path.hpp"
#include "bucket/credentials.hpp"
#include "bucket/patience.hpp"
#include "bucket/settings.hpp"
#include "bucket/silent_requests.hpp"
#include "os/disk_threads.hpp"
#include "os/objects.hpp"

namespace ckpt::bucket {

// As many as a restore has Chunks in flight.
inline constexpr std::size_t request_threads = 16;

using Pieces = std::vector<std::span<const std::byte>>;

struct ObjectFacts {
  std::uint64_t bytes = 0;
  std::string tag;
  std::int64_t modified_ns = 0;
};
struct ListOrder {
  BucketPath below;  // Everything whose name begins with this key and a slash; without a key: all.
  bool is_deep = false;  // Else what follows the next slash is summed up as prefixes.
  std::uint32_t keys_max = 1000;
  std::string token;  // From the page before.
};
struct PartOrder {
  std::string upload;
  std::size_t index = 0;  // From 0.
};

class Client {
 public:
  Client(Clock& clock, Settings settings, Environment environment,
         std::unique_ptr<Transport> transport, os::DiskPriority priority, Patience patience = {});
  ~Client();

  // Errors of all: io (also after the last try), not_found, invalid_argument (no such bucket; a
  // condition, with cause EEXIST), unsupported, corruption (the object is another one now, or
  // shorter), cancelled.
  Task<ObjectFacts> head(BucketPath place);
  Task<os::TaggedBytes> get(BucketPath place, std::uint64_t bytes_max);
  // Only of the object with this tag.
  Task<void> read_range(BucketPath place, std::string tag, std::uint64_t offset,
                        std::span<std::byte> target);
  Task<void> put(BucketPath place, Pieces pieces, os::PutCondition condition);
  Task<void> remove(BucketPath place);
  Task<ListedPage> list(ListOrder order);

  Task<std::string> start_upload(BucketPath place);
  Task<UploadedPart> put_part(BucketPath place, PartOrder order, Pieces pieces);
  Task<void> complete_upload(BucketPath place, std::string upload, std::vector<UploadedPart> parts,
                             std::uint64_t bytes);
  Task<void> abort_upload(BucketPath place, std::string upload);
  // Aborts without waiting for it, from a destructor.
  void abort_in_background(const BucketPath& place, const std::string& upload);
  Task<UploadsPage> list_uploads(BucketPath prefix, UploadsPage before);

  // How long ago this was, by the server's clock as of its last answer.
  std::optional<Duration> age_of(std::optional<WallTime> time) const;

  const Settings& settings() const { return settings_; }
  // Why requests at `place` and below are tried again, or failed; for people. Empty: none for long.
  std::string silence(const BucketPath& place) const {
    return silent_->describe(to_text(place), clock_.now());
  }

 private:
  struct Sent {
    Response response;
    Credentials used;
    bool is_unsure = false;  // An earlier try may have been carried out.
  };
  Request request_for(const BucketPath& place, std::string method) const;
  const Dialect& dialect() const { return dialect_of(settings_.scheme); }
  std::string checksum_of(const Pieces& pieces) const;  // The value of its header.
  ObjectFacts facts_of(const Response& response) const;
  Result<Sent> perform(Request request, WallTime now);
  // Returns good answers. `doing` is what the error says was tried.
  Task<Sent> send(Request request, std::string doing);
  Task<Sent> send_any(Request request, std::string doing);
  Error error_of(const Sent& sent, const std::string& doing) const;
  // The server's time, as far as we know.
  WallTime server_time() const;
  void note_time(const Response& response);
  void set_clock();
  // Both name a silent server, now and then; any thread.
  bool give_up_in_silence(const std::string& doing, std::chrono::milliseconds silence,
                          SilentRequests::Request& ours);
  void name_silence(const std::string& text);
  bool is_interrupted() const { return patience_.is_interrupted && patience_.is_interrupted(); }
  int tries_limit() const { return has_answered_ ? tries_max : patience_.first_tries_max; }
  Error last_error(const std::string& doing, const Error& last, int tries, int stalls) const;
  Task<void> pause(int failures, std::string doing);

  Clock& clock_;
  const Settings settings_;
  const std::unique_ptr<Transport> transport_;
  CredentialSource credentials_;
  const Patience patience_;
  Random random_;
  bool has_answered_ = false;  // The server has, to anything.
  std::mutex silence_mutex_;   // Only for the next one.
  LogLimit silences_{silence_named_every_seconds};
  const std::shared_ptr<SilentRequests> silent_ = std::make_shared<SilentRequests>();
  Duration seen_offset_{};   // The server's time, less ours, in its last answer.
  Duration clock_offset_{};  // The same, when the server first refused our time. Requests have it.
  os::DiskThreads threads_;
};

}  // namespace ckpt::bucket
