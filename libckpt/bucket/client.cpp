#include "bucket/client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/assert.hpp"
#include "base/checksum.hpp"
#include "base/log.hpp"
#include "bucket/crc32c.hpp"
#include "bucket/http_time.hpp"
#include "bucket/retry.hpp"

namespace ckpt::bucket {

namespace {

constexpr int corrected_tries_max = 3;

std::string base64_of(Crc32 crc) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  // Four bytes, the highest first: five full digits, and two bits of a sixth.
  const std::uint64_t bits = std::uint64_t{crc} << 4;
  std::string text;
  for (int shift = 30; shift >= 0; shift -= 6) text += digits[(bits >> shift) & 63];
  return text + "==";
}

std::uint64_t decimal_of(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool has_bytes(const os::TaggedBytes& found, const Pieces& pieces) {
  std::size_t at = 0;
  for (const auto piece : pieces) {
    if (found.bytes.size() - at < piece.size()) return false;
    if (!std::equal(piece.begin(), piece.end(), found.bytes.begin() + static_cast<long>(at)))
      return false;
    at += piece.size();
  }
  return at == found.bytes.size();
}

}  // namespace

Client::Client(Clock& clock, Settings settings, Environment environment,
               std::unique_ptr<Transport> transport, os::DiskPriority priority, Patience patience)
    : clock_(clock),
      settings_(std::move(settings)),
      transport_(std::move(transport)),
      credentials_(std::move(environment), settings_, *transport_),
      patience_(std::move(patience)),
      random_(random_from_system()),
      threads_(request_threads, priority, "ckptd-s3") {}

// Requests in flight end at once, so that the threads can be joined.
Client::~Client() {
  transport_->stop();
}

Request Client::request_for(const BucketPath& place, std::string method) const {
  Request request;
  request.method = std::move(method);
  request.origin = settings_.origin_of(place.bucket);
  request.key = place.key;
  request.place = to_text(place);
  return request;
}

std::string Client::checksum_of(const Pieces& pieces) const {
  Crc32 crc = 0;
  const bool has_crc32 = dialect().has_crc32;
  for (const auto piece : pieces) crc = has_crc32 ? crc32(piece, crc) : crc32c(piece, crc);
  return (has_crc32 ? "" : "crc32c=") + base64_of(crc);
}

ObjectFacts Client::facts_of(const Response& response) const {
  ObjectFacts facts;
  facts.bytes = decimal_of(response.header("content-length"));
  facts.tag = response.header(dialect().tag_header);
  if (const auto when = parse_http_time(response.header("last-modified")))
    facts.modified_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(when->time_since_epoch()).count();
  return facts;
}

WallTime Client::server_time() const {
  return clock_.wall_time() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(clock_offset_);
}

Result<Client::Sent> Client::perform(Request request, WallTime now) {
  Sent sent;
  CKPT_TRY(sent.used, credentials_.at(now));
  for (Header& header : request.headers)
    if (header.name == dialect().checksum_header && header.value.empty())
      header.value = checksum_of(request.body);
  SigningScope scope;
  scope.region = settings_.region;
  scope.service = dialect().service;
  scope.dialect = dialect();
  scope.time = now;
  sign(request, sent.used.keys, scope);
  CKPT_TRY(sent.response, transport_->perform(request));
  return sent;
}

void Client::note_time(const Response& response) {
  const auto theirs = parse_http_time(response.header("date"));
  if (theirs) seen_offset_ = std::chrono::duration_cast<Duration>(*theirs - clock_.wall_time());
}

std::optional<Duration> Client::age_of(std::optional<WallTime> time) const {
  if (!time) return std::nullopt;
  return std::chrono::duration_cast<Duration>(clock_.wall_time() - *time) + seen_offset_;
}

void Client::set_clock() {
  clock_offset_ = seen_offset_;
  log_warning("s3: this machine's clock is off by {} s against the server's, whose time is used",
              std::chrono::duration_cast<std::chrono::seconds>(clock_offset_).count());
}

Error Client::error_of(const Sent& sent, const std::string& doing) const {
  const Response& response = sent.response;
  const ServerError said = parse_error(response.body);
  std::string words =
      fmt::format("{}: {} answered {}", doing, settings_.describe(), response.status);
  if (!said.code.empty()) words += " " + said.code;
  if (!said.message.empty()) words += ": " + said.message.substr(0, 300);
  if (response.status == 404) {
    if (said.code != "NoSuchBucket") return Error(Errc::not_found, words);
    words = fmt::format("{}: there is no such bucket at {} (404 NoSuchBucket)", doing,
                        settings_.describe());
    return Error(Errc::invalid_argument, words + "; " + settings_.source,
                 std::make_error_code(std::errc::no_such_file_or_directory));
  }
  if (response.status == 412 || said.code == "ConditionalRequestConflict") {
    return Error(Errc::invalid_argument, words, std::make_error_code(std::errc::file_exists));
  }
  if (response.status == 416) return Error(Errc::corruption, words);
  if (response.status == 501) return Error(Errc::unsupported, words);
  const std::string region(response.header("x-amz-bucket-region"));
  if (!region.empty() && region != settings_.region)
    words += fmt::format("; the bucket is in region {}: set AWS_REGION={}; {}", region, region,
                         settings_.source);
  if (response.status == 401 || response.status == 403) {
    words += fmt::format(" (with the keys {} of {}); {}", sent.used.keys.access_key,
                         sent.used.origin, settings_.source);
    return Error(Errc::io, words, std::make_error_code(std::errc::permission_denied));
  }
  return Error(Errc::io, words);
}

bool Client::give_up_in_silence(const std::string& doing, std::chrono::milliseconds silence,
                                SilentRequests::Request& ours) {
  if (silence < silence_named_after) return false;
  if (is_interrupted()) return true;
  const std::string text = fmt::format("{}: no answer from {} yet", doing, settings_.describe());
  name_silence(text);
  ours.note(text, clock_.now());
  return false;
}

void Client::name_silence(const std::string& text) {
  const std::lock_guard lock(silence_mutex_);
  if (silences_.may_speak()) log(patience_.silence_level, "s3: {}", text);
}

Error Client::last_error(const std::string& doing, const Error& last, int tries, int stalls) const {
  std::error_code cause;
  if (stalls >= stalls_max) {
    cause = std::make_error_code(std::errc::timed_out);
  } else if (!has_answered_ && tries < tries_max) {
    cause = std::make_error_code(std::errc::not_connected);  // Nobody need begin anew.
  }
  return Error(Errc::io,
               fmt::format("{}: {} tries failed, the last one because {}; {}", doing, tries,
                           last.text(), settings_.source),
               cause);
}

// In short pieces, so that an interruption is noticed.
Task<void> Client::pause(int failures, std::string doing) {
  constexpr Duration piece = std::chrono::milliseconds(200);
  const Time until = clock_.after(pause_after(failures, random_));
  while (clock_.now() < until) {
    if (is_interrupted()) co_return fail(Errc::cancelled, doing + ": interrupted");
    const Time next = patience_.is_interrupted ? std::min(until, clock_.after(piece)) : until;
    CKPT_CO_CHECK(co_await sleep_until(clock_, next));
  }
  if (is_interrupted()) co_return fail(Errc::cancelled, doing + ": interrupted");
  co_return Status();
}

// Good answers, and bad ones that no other try would change.
Task<Client::Sent> Client::send_any(Request request, std::string doing) {
  bool is_unsure = false;
  int stalls = 0;
  const Time named_from = clock_.after(silence_named_after);
  // It ends with whoever waits for it: a try that is under way on its thread then notes no more.
  const auto ours = std::make_shared<SilentRequests::Request>(silent_, request.place, clock_.now());
  request.on_silence = [this, doing,
                        seen = std::weak_ptr(ours)](std::chrono::milliseconds silence) {
    const auto waited_for = seen.lock();
    return waited_for && give_up_in_silence(doing, silence, *waited_for);
  };
  for (int tries = 1;; ++tries) {
    std::function<Result<Sent>()> work = [this, request, now = server_time()] {
      return perform(request, now);
    };
    auto sent = co_await threads_.run<Sent>(std::move(work));
    Reaction reaction = Reaction::give_up;
    std::string trouble;
    if (sent) {
      has_answered_ = true;
      note_time(sent->response);
      // A completed upload may be answered with 200 and an error in the text.
      const ServerError said =
          request.target.empty() ? parse_error(sent->response.body) : ServerError();
      const bool is_good = sent->response.is_good() && said.code.empty();
      if (!is_good) reaction = reaction_to(sent->response.status, said);
      // Other keys, or the server's time, help at once or not at all.
      const bool is_other = reaction == Reaction::renew_keys || reaction == Reaction::set_clock;
      if (is_other && tries >= corrected_tries_max) reaction = Reaction::give_up;
      if (reaction == Reaction::renew_keys) credentials_.forget(sent->used);
      if (reaction == Reaction::set_clock) set_clock();
      if (is_good || reaction == Reaction::give_up || tries == tries_max) {
        if (is_good || reaction == Reaction::give_up) ours->answered();
        sent->is_unsure = is_unsure;
        if (!is_good && sent->response.is_good()) sent->response.status = 500;
        co_return std::move(*sent);
      }
      is_unsure = is_unsure || sent->response.status >= 500;
      trouble = fmt::format("{} answered {}", settings_.describe(), sent->response.status);
    } else {
      reaction = reaction_to(sent.error());
      if (reaction == Reaction::give_up) co_return fail(std::move(sent).error().context(doing));
      if (sent.error().cause() == std::errc::timed_out) ++stalls;
      if (tries >= tries_limit() || stalls == stalls_max)
        co_return fail(last_error(doing, sent.error(), tries, stalls));
      is_unsure = true;
      trouble = fmt::format("no answer from {} ({})", settings_.describe(), sent.error().text());
    }
    if (reaction != Reaction::try_again) continue;
    log(LogLevel::debug, "s3: {} is tried again", doing);
    ours->note(fmt::format("{}: {}", doing, trouble), clock_.now());
    if (clock_.now() >= named_from)
      name_silence(fmt::format("{}: {}, {} of {} tries", doing, trouble, tries, tries_limit()));
    CKPT_CO_CHECK(co_await pause(tries, doing));
  }
}

Task<Client::Sent> Client::send(Request request, std::string doing) {
  auto sent = co_await send_any(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  if (!sent->response.is_good()) co_return fail(error_of(*sent, doing));
  co_return std::move(*sent);
}

Task<ObjectFacts> Client::head(BucketPath place) {
  auto sent = co_await send(request_for(place, "HEAD"), "look at " + to_text(place));
  if (!sent) co_return fail(std::move(sent).error());
  co_return facts_of(sent->response);
}

Task<os::TaggedBytes> Client::get(BucketPath place, std::uint64_t bytes_max) {
  constexpr int rounds_max = 5;  // Records are small, and replaced once in minutes.
  const std::string doing = "read " + to_text(place);
  for (int round = 1;; ++round) {
    CKPT_CO_TRY(const ObjectFacts facts, co_await head(place));
    if (facts.bytes > bytes_max) {
      co_return fail(Errc::exhausted, fmt::format("{}: it has {} bytes, more than {}", doing,
                                                  facts.bytes, bytes_max));
    }
    os::TaggedBytes found;
    found.tag = facts.tag;
    found.bytes.resize(facts.bytes);
    if (facts.bytes == 0) co_return found;
    Status read = co_await read_range(place, facts.tag, 0, std::span(found.bytes));
    if (read) co_return found;
    // Somebody has replaced it between the two requests.
    const bool is_other = read.error().code() == Errc::corruption;
    if (!is_other || round == rounds_max) co_return fail(std::move(read).error());
  }
}

Task<void> Client::read_range(BucketPath place, std::string tag, std::uint64_t offset,
                              std::span<std::byte> target) {
  CKPT_ASSERT(!target.empty());
  const std::string doing =
      fmt::format("read {} bytes at {} of {}", target.size(), offset, to_text(place));
  Request request = request_for(place, "GET");
  request.range.emplace();
  request.range->offset = offset;
  request.range->bytes = target.size();
  request.target = target;
  if (!tag.empty()) request.headers.push_back({std::string(dialect().if_unchanged_header), tag});
  auto sent = co_await send(std::move(request), doing);
  if (!sent) {
    const bool is_other =
        sent.error().cause() == std::errc::file_exists || sent.error().code() == Errc::not_found;
    if (!is_other) co_return fail(std::move(sent).error());
    co_return fail(Errc::corruption, doing + ": it was replaced or removed while it was read");
  }
  const std::string wanted = fmt::format("bytes {}-{}/", offset, offset + target.size() - 1);
  if (sent->response.header("content-range").starts_with(wanted)) co_return Status();
  co_return fail(
      Errc::io, fmt::format("{}: {} answered with other bytes ({} {})", doing, settings_.describe(),
                            sent->response.status, sent->response.header("content-range")));
}

Task<void> Client::put(BucketPath place, Pieces pieces, os::PutCondition condition) {
  const std::string doing = "write " + to_text(place);
  Request request = request_for(place, "PUT");
  request.body = pieces;
  request.headers.push_back({std::string(dialect().checksum_header), ""});
  if (condition.mode() == os::PutMode::if_absent)
    request.headers.push_back(
        {std::string(dialect().if_absent_header), std::string(dialect().absent_tag)});
  if (condition.mode() == os::PutMode::if_unchanged)
    request.headers.push_back({std::string(dialect().if_unchanged_header), condition.tag()});
  auto sent = co_await send_any(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  if (sent->response.is_good()) co_return Status();
  Error error = error_of(*sent, doing);
  // An earlier try of ours may be what is in the way.
  if (error.cause() == std::errc::file_exists && sent->is_unsure) {
    std::uint64_t bytes = 0;
    for (const auto piece : pieces) bytes += piece.size();
    const auto there = co_await get(place, bytes);
    if (there && has_bytes(*there, pieces)) co_return Status();
  }
  // With a condition on what is not there any more, servers answer 404.
  if (condition.mode() == os::PutMode::if_unchanged && error.code() == Errc::not_found)
    error =
        Error(Errc::invalid_argument, error.text(), std::make_error_code(std::errc::file_exists));
  co_return fail(std::move(error));
}

Task<void> Client::remove(BucketPath place) {
  auto sent = co_await send(request_for(place, "DELETE"), "remove " + to_text(place));
  if (!sent && sent.error().code() != Errc::not_found) co_return fail(std::move(sent).error());
  co_return Status();
}

Task<ListedPage> Client::list(ListOrder order) {
  BucketPath root = order.below;
  root.key.clear();
  const std::string doing = "list " + to_text(order.below);
  Request request = request_for(root, "GET");
  request.place = to_text(order.below);
  request.query = {{"list-type", "2"},
                   {"prefix", prefix_of(order.below)},
                   {"max-keys", std::to_string(order.keys_max)}};
  if (!order.is_deep) request.query.emplace_back("delimiter", "/");
  if (!order.token.empty()) request.query.emplace_back("continuation-token", order.token);
  auto sent = co_await send(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  auto page = parse_list(sent->response.body);
  if (!page) co_return fail(std::move(page).error().context(doing));
  co_return std::move(*page);
}

Task<std::string> Client::start_upload(BucketPath place) {
  const std::string doing = "begin to upload " + to_text(place);
  Request request = request_for(place, "POST");
  request.query.emplace_back("uploads", "");
  if (dialect().has_crc32) request.headers.push_back({"x-amz-checksum-algorithm", "CRC32"});
  auto sent = co_await send(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  auto id = parse_upload_id(sent->response.body);
  if (!id) co_return fail(std::move(id).error().context(doing));
  co_return std::move(*id);
}

Task<UploadedPart> Client::put_part(BucketPath place, PartOrder order, Pieces pieces) {
  Request request = request_for(place, "PUT");
  request.query = {{"partNumber", std::to_string(order.index + 1)}, {"uploadId", order.upload}};
  request.headers.push_back({std::string(dialect().checksum_header), ""});
  request.body = pieces;
  auto sent = co_await send(std::move(request),
                            fmt::format("upload part {} of {}", order.index + 1, to_text(place)));
  if (!sent) co_return fail(std::move(sent).error());
  UploadedPart part;
  part.tag = sent->response.header("etag");
  // Servers that do not know the checksum do not want to see it again.
  if (dialect().has_crc32) part.checksum = sent->response.header(dialect().checksum_header);
  co_return part;
}

Task<void> Client::complete_upload(BucketPath place, std::string upload,
                                   std::vector<UploadedPart> parts, std::uint64_t bytes) {
  const std::string doing = "complete the upload of " + to_text(place);
  const std::string text = render_parts(parts);
  Request request = request_for(place, "POST");
  request.query.emplace_back("uploadId", upload);
  request.body.push_back(std::as_bytes(std::span(text)));
  auto sent = co_await send_any(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  if (sent->response.is_good()) co_return Status();
  // An earlier try may have completed it. Only this upload makes an object of this name.
  if (sent->response.status == 404 && sent->is_unsure) {
    const auto there = co_await head(place);
    if (there && there->bytes == bytes) co_return Status();
  }
  co_return fail(error_of(*sent, doing));
}

Task<void> Client::abort_upload(BucketPath place, std::string upload) {
  Request request = request_for(place, "DELETE");
  request.query.emplace_back("uploadId", upload);
  auto sent = co_await send(std::move(request), "abort an upload of " + to_text(place));
  if (!sent && sent.error().code() != Errc::not_found) co_return fail(std::move(sent).error());
  co_return Status();
}

void Client::abort_in_background(const BucketPath& place, const std::string& upload) {
  Request request = request_for(place, "DELETE");
  request.query.emplace_back("uploadId", upload);
  // One try: the next timeline aborts what is left.
  const bool is_queued =
      threads_.post([this, request, now = server_time()] { (void)perform(request, now); });
  if (!is_queued) log(LogLevel::debug, "s3: an upload of {} is left behind", to_text(place));
}

Task<UploadsPage> Client::list_uploads(BucketPath prefix, UploadsPage before) {
  BucketPath root = prefix;
  root.key.clear();
  const std::string doing = "list the uploads below " + to_text(prefix);
  Request request = request_for(root, "GET");
  request.place = to_text(prefix);
  request.query = {{"uploads", ""}, {"prefix", prefix_of(prefix)}};
  if (!before.next_key.empty()) {
    request.query.emplace_back("key-marker", before.next_key);
    request.query.emplace_back("upload-id-marker", before.next_id);
  }
  auto sent = co_await send(std::move(request), doing);
  if (!sent) co_return fail(std::move(sent).error());
  auto page = parse_uploads(sent->response.body);
  if (!page) co_return fail(std::move(page).error().context(doing));
  co_return std::move(*page);
}

}  // namespace ckpt::bucket
