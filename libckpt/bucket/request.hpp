// Request: one HTTP request and its answer, and the seam that carries it.
//
// Threads: Transport::perform blocks, and is called from several threads at once.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::bucket {

struct Header {
  std::string name;  // Lower case.
  std::string value;
};

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // Not 0.
};

// A server and the path in front of every key: "https", "bucket.s3.eu-west-1.amazonaws.com", "".
struct Origin {
  std::string scheme = "https";
  std::string host;  // With the port, unless it is the scheme's own.
  std::string path;  // Encoded; empty, or it begins with a slash and does not end with one.
  bool operator==(const Origin&) const = default;
};

// Errors: invalid_argument (not http or https, no host, a query in it).
Result<Origin> parse_origin(std::string_view url);

struct Request {
  std::string method = "GET";
  Origin origin;
  std::string key;    // Not encoded; no slash in front.
  std::string place;  // "s3://bucket/key", of a listing what it lists; for people.
  std::vector<std::pair<std::string, std::string>> query;  // Not encoded.
  std::vector<Header> headers;                             // Without those that signing adds.
  std::vector<std::span<const std::byte>> body;            // Borrowed.
  std::optional<ByteRange> range;                          // Asks for these bytes alone.
  std::span<std::byte> target;  // Borrowed. Takes the bytes of a good answer, exactly; else `body`.
  bool is_local = false;        // The machine's own service: no proxy, and short time-outs.
  // Asked again and again, on the thread of perform, while no byte comes or goes. True: give up.
  std::function<bool(std::chrono::milliseconds silence)> on_silence;

  std::uint64_t body_bytes() const;
  std::string encoded_path() const;  // "/bucket/a%20b"
  std::string encoded_query()
      const;  // Sorted; "uploads=&x=1". A name without a value keeps its "=".
  std::string url() const;
};

struct Response {
  int status = 0;
  std::vector<Header> headers;
  std::string body;

  bool is_good() const { return status >= 200 && status < 300; }
  std::string_view header(std::string_view name) const;  // Empty: there is none.
};

// Percent-encodes all but letters, digits and "-._~", as S3 signs it.
std::string percent_encode(std::string_view text, bool keeps_slashes);

class Transport {
 public:
  virtual ~Transport() = default;
  // Returns any answer that came whole. Errors: unavailable (no connection, a time-out, a cut-off
  // or overlong answer: worth another try), io (TLS refused, and the like), unsupported (no HTTP
  // library), cancelled (stop, or `on_silence`).
  virtual Result<Response> perform(const Request& request) = 0;
  // Ends requests in flight, and all later ones.
  virtual void stop() = 0;
};

inline constexpr std::size_t answer_bytes_max = 16u << 20;  // A page of 1000 keys is below 2 MiB.

}  // namespace ckpt::bucket
