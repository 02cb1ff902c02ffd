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
  std::string time = "Thu, 26 Nov 2026 06:37:10 GMT";

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

  static std::optional<std::string> parameter(const Request& request, std::string_view name) {
    for (const auto& [key, value] : request.query)
      if (key == name) return value;
    return std::nullopt;
  }
  static std::string header(const Request& request, std::string_view name) {
    for (const auto& header : request.headers)
      if (header.name == name) return header.value;
    return {};
  }
  static std::string body_of(const Request& request) {
    std::string body;
    for (const auto piece : request.body)
      body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return body;
  }

  Response carry_out(const Request& request) {
    const auto upload = parameter(request, "uploadId");
    if (request.key.empty())
      return parameter(request, "uploads") ? list_uploads(request) : list(request);
    if (request.method == "PUT") return upload ? put_part(request, *upload) : put(request);
    if (request.method == "POST") return upload ? complete(request, *upload) : begin(request);
    if (request.method == "DELETE") {
      if (upload) return uploads.erase(*upload) > 0 ? answer(204) : error(404, "NoSuchUpload");
      objects.erase(request.key);
      return answer(204);
    }
    return read(request);
  }

  Response read(const Request& request) {
    const auto found = objects.find(request.key);
    if (found == objects.end())
      return request.method == "HEAD" ? answer(404) : error(404, "NoSuchKey");
    const std::string& content = found->second;
    const std::string wanted = header(request, "if-match");
    if (!wanted.empty() && wanted != tag_of(content)) return error(412, "PreconditionFailed");
    Response response = answer(200);
    response.headers.push_back({"etag", tag_of(content)});
    response.headers.push_back({"last-modified", time});
    if (request.method == "HEAD") {
      response.headers.push_back({"content-length", std::to_string(content.size())});
      return response;
    }
    if (!request.range || request.range->offset >= content.size())
      return error(416, "InvalidRange");
    const std::string piece = content.substr(request.range->offset, request.range->bytes);
    if (piece.size() != request.target.size()) return error(416, "InvalidRange");
    response.status = 206;
    response.headers.push_back(
        {"content-range", fmt::format("bytes {}-{}/{}", request.range->offset,
                                      request.range->offset + piece.size() - 1, content.size())});
    std::copy(piece.begin(), piece.end(), reinterpret_cast<char*>(request.target.data()));
    return response;
  }

  Response put(const Request& request) {
    const auto found = objects.find(request.key);
    const std::string wanted = header(request, "if-match");
    const bool must_be_absent = header(request, "if-none-match") == "*";
    if (!ignores_conditions) {
      if (must_be_absent && found != objects.end()) return error(412, "PreconditionFailed");
      if (!wanted.empty() && found == objects.end()) return error(404, "NoSuchKey");
      if (!wanted.empty() && wanted != tag_of(found->second))
        return error(412, "PreconditionFailed");
    }
    objects[request.key] = body_of(request);
    Response response = answer(200);
    response.headers.push_back({"etag", tag_of(objects[request.key])});
    return response;
  }

  Response begin(const Request& request) {
    const std::string id = fmt::format("upload-{}", ++last_upload_);
    uploads[id] = request.key;
    return answer(200, "<InitiateMultipartUploadResult><UploadId>" + id +
                           "</UploadId></InitiateMultipartUploadResult>");
  }
  Response put_part(const Request& request, const std::string& id) {
    if (!uploads.contains(id)) return error(404, "NoSuchUpload");
    const auto number = std::stoul(parameter(request, "partNumber").value());
    parts_[id][number] = body_of(request);
    Response response = answer(200);
    response.headers.push_back({"etag", tag_of(parts_[id][number])});
    response.headers.push_back({"x-amz-checksum-crc32", header(request, "x-amz-checksum-crc32")});
    return response;
  }
  Response complete(const Request&, const std::string& id) {
    const auto found = uploads.find(id);
    if (found == uploads.end()) return error(404, "NoSuchUpload");
    std::string content;
    for (const auto& [number, part] : parts_[id]) content += part;
    objects[found->second] = content;
    uploads.erase(found);
    return answer(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>");
  }

  Response list(const Request& request) {
    const std::string prefix = parameter(request, "prefix").value_or("");
    const std::string after_key = parameter(request, "continuation-token").value_or("");
    const bool is_flat = parameter(request, "delimiter").has_value();
    const std::size_t most =
        std::min(page_keys_max, std::stoul(parameter(request, "max-keys").value_or("1000")));
    std::string text;
    std::string last;
    std::string last_prefix;
    std::size_t count = 0;
    bool is_cut = false;
    for (const auto& [key, content] : objects) {
      if (!key.starts_with(prefix) || key <= after_key) continue;
      const auto slash = is_flat ? key.find('/', prefix.size()) : std::string::npos;
      const std::string summed = slash == std::string::npos ? "" : key.substr(0, slash + 1);
      if (!summed.empty() && (summed == last_prefix || after_key.starts_with(summed))) {
        last = key;
        continue;
      }
      if (count == most) {
        is_cut = true;
        break;
      }
      ++count;
      last = key;
      last_prefix = summed;
      text += summed.empty() ? fmt::format("<Contents><Key>{}</Key><Size>{}</Size></Contents>", key,
                                           content.size())
                             : "<CommonPrefixes><Prefix>" + summed + "</Prefix></CommonPrefixes>";
    }
    const std::string token =
        is_cut ? "<NextContinuationToken>" + last + "</NextContinuationToken>" : "";
    return answer(200, fmt::format("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3\">"
                                   "<IsTruncated>{}</IsTruncated>{}{}</ListBucketResult>",
                                   is_cut ? "true" : "false", token, text));
  }
  Response list_uploads(const Request& request) {
    const std::string prefix = parameter(request, "prefix").value_or("");
    std::string text;
    for (const auto& [id, key] : uploads) {
      if (key.starts_with(prefix))
        text += "<Upload><Key>" + key + "</Key><UploadId>" + id + "</UploadId></Upload>";
    }
    return answer(200, "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>" + text +
                           "</ListMultipartUploadsResult>");
  }

  std::mutex mutex_;
  int last_upload_ = 0;
  std::map<std::string, std::map<unsigned long, std::string>> parts_;
};

}  // namespace ckpt::test
