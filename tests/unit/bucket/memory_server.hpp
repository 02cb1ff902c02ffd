// MemoryServer: an S3 server in memory, as a Transport, with faults that a test asks for.
//
// It answers as S3 does what the client asks of it: conditional puts, ranges, listings in pages,
// and uploads in parts. A transport made with `transport()` may be destroyed before the server.
//
// Threads: any; one request at a time.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bucket/request.hpp"

namespace ckpt::test {

class MemoryServer {
 public:
  using Request = bucket::Request;
  using Response = bucket::Response;

  std::unique_ptr<bucket::Transport> transport() { return std::make_unique<Line>(*this); }

  // Asked before a request is carried out: an answer in place of the server's.
  std::function<std::optional<Result<Response>>(const Request&)> before;
  // Asked after it: what becomes of the answer on its way back.
  std::function<void(const Request&, Result<Response>&)> after;

  std::map<std::string, std::string> objects;  // By key; there is one bucket.
  std::map<std::string, std::string> uploads;  // Open ones: by number, the key.
  std::vector<std::string> log;                // "PUT a/b", in their order.
  std::size_t page_keys_max = 1000;
  bool ignores_conditions = false;
  bool is_google = false;  // It speaks Google's dialect, and refuses what is Amazon's alone.
  std::string time = "Thu, 26 Nov 2026 06:37:10 GMT";
  std::string written = "2026-11-26T06:37:10.000Z";  // Each object, and the start of each upload.

  static Response answer(int status, std::string body = {}) {
    Response response;
    response.status = status;
    response.body = std::move(body);
    return response;
  }
  static Response error(int status, const std::string& code) {
    return answer(status, "<Error><Code>" + code +
                              "</Code><Message>as the test wishes</Message>"
                              "</Error>");
  }
  static Result<Response> broken() { return fail(Errc::unavailable, "the connection broke"); }
  static std::string generation_of(const std::string& content) {
    return fmt::format("{}", std::hash<std::string>{}(content) | 1);
  }
  static std::string tag_of(const std::string& content) {
    return fmt::format("\"{:x}-{}\"", std::hash<std::string>{}(content), content.size());
  }

 private:
  class Line final : public bucket::Transport {
   public:
    explicit Line(MemoryServer& server) : server_(server) {}
    Result<Response> perform(const Request& request) override { return server_.serve(request); }
    void stop() override {}

   private:
    MemoryServer& server_;
  };

  Result<Response> serve(const Request& request) {
    const std::lock_guard lock(mutex_);
    log.push_back(request.method + " " + request.key);
    if (before) {
      if (auto instead = before(request)) return std::move(*instead);
    }
    Result<Response> response = carry_out(request);
    response->headers.push_back({"date", time});
    if (after) after(request, response);
    return response;
  }

  Response carry_out(const Request& request);
  // As Google does, or would do: nothing if the request is well.
  std::optional<Response> refuse(const Request& request) const;
  Response read(const Request& request);
  Response put(const Request& request);
  Response begin(const Request& request);
  Response put_part(const Request& request, const std::string& id);
  Response complete(const std::string& id);
  Response list(const Request& request);
  Response list_uploads(const Request& request);

  std::mutex mutex_;
  int last_upload_ = 0;
  std::map<std::string, std::map<unsigned long, std::string>> parts_;
};

}  // namespace ckpt::test
