#include "bucket/curl_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <mutex>

#include "base/assert.hpp"
#include "bucket/curl_library.hpp"

namespace ckpt::bucket {

namespace {

// A connection that does not come within this is tried anew, maybe to another server.
constexpr long connect_ms_max = 10'000;
// A transfer slower than this for that long is given up: a dead peer, or a stuck proxy.
constexpr long slow_bytes_per_second = 1024;
constexpr long slow_seconds_max = 20;
constexpr long local_ms_max =
    2'000;  // Services of the own machine answer at once, or are not there.

// One request on its way; libcurl calls back into it, on the thread of perform.
struct Exchange {
  const Request& request;
  const std::atomic<bool>& is_stopped;
  Response response;
  std::size_t piece = 0;  // The next byte to send of the request's body.
  std::size_t offset = 0;
  std::uint64_t received = 0;  // Into `target`.
  bool is_overlong = false;
  bool is_given_up = false;  // By the one who asked.
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

std::size_t send_more(char* room, std::size_t size, std::size_t count, void* user) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  const std::size_t room_bytes = size * count;
  std::size_t filled = 0;
  const auto& body = exchange.request.body;
  while (filled < room_bytes && exchange.piece < body.size()) {
    const auto left = body[exchange.piece].subspan(exchange.offset);
    const std::size_t bytes = std::min(left.size(), room_bytes - filled);
    if (bytes > 0) std::memcpy(room + filled, left.data(), bytes);
    filled += bytes;
    exchange.offset += bytes;
    if (exchange.offset < body[exchange.piece].size()) continue;
    ++exchange.piece;
    exchange.offset = 0;
  }
  return filled;
}

// A kept connection that the server has closed meanwhile: libcurl sends again from the start.
int rewind_body(void* user, curl_off_t offset, int origin) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  exchange.piece = 0;
  exchange.offset = 0;
  return CURL_SEEKFUNC_OK;
}

std::size_t take_header(char* data, std::size_t size, std::size_t count, void* user) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  std::string_view line(data, size * count);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // A later answer replaces an informal one ("100 Continue").
    exchange.response.headers.clear();
    const auto space = line.find(' ');
    const std::string code(space == std::string_view::npos ? "" : line.substr(space + 1, 3));
    exchange.response.status = std::atoi(code.c_str());
  } else if (const auto colon = line.find(':'); colon != std::string_view::npos) {
    Header header{std::string(line.substr(0, colon)), std::string(line.substr(colon + 1))};
    std::transform(header.name.begin(), header.name.end(), header.name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    header.value.erase(0, header.value.find_first_not_of(' '));
    exchange.response.headers.push_back(std::move(header));
  }
  return size * count;
}

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* user) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  const std::size_t bytes = size * count;
  const auto target = exchange.request.target;
  if (target.empty() || !exchange.response.is_good()) {
    exchange.is_overlong = exchange.response.body.size() + bytes > answer_bytes_max;
    if (exchange.is_overlong) return 0;
    exchange.response.body.append(data, bytes);
    return bytes;
  }
  exchange.is_overlong = exchange.received + bytes > target.size();
  if (exchange.is_overlong) return 0;
  std::memcpy(target.data() + exchange.received, data, bytes);
  exchange.received += bytes;
  return bytes;
}

int note_progress(void* user, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  if (exchange.is_stopped.load()) return 1;  // Ends the transfer.
  const bool is_silent = received == 0 && sent == 0;
  if (!is_silent || !exchange.request.on_silence) return 0;
  const auto silence = std::chrono::steady_clock::now() - exchange.began;
  exchange.is_given_up =
      exchange.request.on_silence(std::chrono::duration_cast<std::chrono::milliseconds>(silence));
  return exchange.is_given_up ? 1 : 0;
}

bool is_worth_another_try(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:  // The answer is no HTTP, though the request was.
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_AGAIN:
      return true;
    default:
      return false;
  }
}

class CurlTransport final : public Transport {
 public:
  CurlTransport(const CurlLibrary& curl, std::string ca_file, Proxies proxies)
      : curl_(curl), ca_file_(std::move(ca_file)), proxies_(std::move(proxies)) {}
  ~CurlTransport() override {
    for (CURL* handle : idle_) curl_.easy_cleanup(handle);
  }

  Result<Response> perform(const Request& request) override {
    if (is_stopped_.load()) return fail(Errc::cancelled, "the daemon is stopping");
    CURL* handle = take_handle();
    if (handle == nullptr) return fail(Errc::exhausted, "libcurl has no memory for a request");
    Exchange exchange{.request = request, .is_stopped = is_stopped_, .response = {}};
    curl_slist* headers = nullptr;
    for (const Header& header : request.headers)
      headers = curl_.slist_append(headers, (header.name + ": " + header.value).c_str());
    headers = curl_.slist_append(headers, "Expect:");  // No round trip before each body.
    if (request.range) {
      const std::uint64_t last = request.range->offset + request.range->bytes - 1;
      headers = curl_.slist_append(
          headers, fmt::format("range: bytes={}-{}", request.range->offset, last).c_str());
    }
    set_up(handle, exchange, headers);
    const CURLcode code = curl_.easy_perform(handle);
    curl_.slist_free_all(headers);
    give_back(handle);
    return conclude(exchange, code);
  }

  void stop() override { is_stopped_.store(true); }

 private:
  CURL* take_handle() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return curl_.easy_init();
    CURL* handle = idle_.back();
    idle_.pop_back();
    return handle;
  }
  void give_back(CURL* handle) {
    curl_.easy_reset(handle);  // Its connection stays.
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }

  void set_up(CURL* handle, Exchange& exchange, curl_slist* headers) {
    const Request& request = exchange.request;
    const auto set = [&](CURLoption option, auto value) {
      (void)curl_.easy_setopt(handle, option, value);  // An older library lacks some.
    };
    const std::string url = request.url();
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_PATH_AS_IS, 1L);  // The signature covers the path as it stands.
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_CONNECTTIMEOUT_MS, request.is_local ? local_ms_max : connect_ms_max);
    set(CURLOPT_LOW_SPEED_LIMIT, slow_bytes_per_second);
    set(CURLOPT_LOW_SPEED_TIME, slow_seconds_max);
    // Also where they are empty: else libcurl looks for them in the environment.
    const bool has_tls = request.origin.scheme == "https";
    set(CURLOPT_PROXY, (has_tls ? proxies_.https : proxies_.http).c_str());
    set(CURLOPT_NOPROXY, request.is_local ? "*" : proxies_.none_for.c_str());
    if (request.is_local) set(CURLOPT_TIMEOUT_MS, local_ms_max);
    if (!ca_file_.empty()) set(CURLOPT_CAINFO, ca_file_.c_str());
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request.method == "PUT" || request.method == "POST") {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body_bytes()));
      if (request.method == "POST") set(CURLOPT_CUSTOMREQUEST, "POST");
    } else if (request.method == "DELETE") {
      set(CURLOPT_CUSTOMREQUEST, "DELETE");
    }
    set(CURLOPT_READFUNCTION, &send_more);
    set(CURLOPT_READDATA, &exchange);
    set(CURLOPT_SEEKFUNCTION, &rewind_body);
    set(CURLOPT_SEEKDATA, &exchange);
    set(CURLOPT_HEADERFUNCTION, &take_header);
    set(CURLOPT_HEADERDATA, &exchange);
    set(CURLOPT_WRITEFUNCTION, &take_body);
    set(CURLOPT_WRITEDATA, &exchange);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &note_progress);
    set(CURLOPT_XFERINFODATA, &exchange);
  }

  Result<Response> conclude(Exchange& exchange, CURLcode code) {
    const std::string where = exchange.request.origin.host;
    if (is_stopped_.load()) return fail(Errc::cancelled, "the daemon is stopping");
    if (exchange.is_given_up) return fail(Errc::cancelled, "interrupted");
    if (exchange.is_overlong)
      return fail(Errc::unavailable, where + " sent more bytes than were asked for");
    if (code == CURLE_OPERATION_TIMEDOUT) {
      return fail(
          Errc::unavailable,
          fmt::format("{}: no connection within {} s, or less than {} bytes per second for "
                      "{} s",
                      where, connect_ms_max / 1000, slow_bytes_per_second, slow_seconds_max),
          std::make_error_code(std::errc::timed_out));
    }
    if (code != CURLE_OK) {
      const Errc kind = is_worth_another_try(code) ? Errc::unavailable : Errc::io;
      return fail(kind, fmt::format("{}: {}", where, curl_.easy_strerror(code)));
    }
    const auto target = exchange.request.target;
    if (exchange.response.is_good() && exchange.received != target.size())
      return fail(Errc::unavailable,
                  fmt::format("{} sent {} bytes of {}", where, exchange.received, target.size()));
    return std::move(exchange.response);
  }

  const CurlLibrary& curl_;
  const std::string ca_file_;
  const Proxies proxies_;
  std::atomic<bool> is_stopped_ = false;
  std::mutex mutex_;
  std::vector<CURL*> idle_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_curl_transport(const std::string& ca_file,
                                                       const Proxies& proxies) {
  CKPT_TRY(const CurlLibrary* curl, CurlLibrary::load());
  return std::unique_ptr<Transport>(std::make_unique<CurlTransport>(*curl, ca_file, proxies));
}

}  // namespace ckpt::bucket
