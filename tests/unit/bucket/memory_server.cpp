#include "unit/bucket/memory_server.hpp"

#include "bucket/crc32c.hpp"

namespace ckpt::test {

namespace {

std::optional<std::string> parameter(const bucket::Request& request, std::string_view name) {
  for (const auto& [key, value] : request.query)
    if (key == name) return value;
  return std::nullopt;
}
std::string header(const bucket::Request& request, std::string_view name) {
  for (const auto& header : request.headers)
    if (header.name == name) return header.value;
  return {};
}
std::string body_of(const bucket::Request& request) {
  std::string body;
  for (const auto piece : request.body)
    body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return body;
}

// Four bytes.
std::string base64_of(const std::string& bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::uint64_t bits = 0;
  for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
  bits <<= 4;
  std::string text;
  for (int shift = 30; shift >= 0; shift -= 6) text += digits[(bits >> shift) & 63];
  return text + "==";
}

}  // namespace

std::optional<MemoryServer::Response> MemoryServer::refuse(const Request& request) const {
  for (const auto& sent : request.headers)
    if (sent.name.starts_with("x-amz-")) return error(400, "InvalidArgument");
  if (!header(request, "authorization").starts_with("GOOG4-HMAC-SHA256 "))
    return error(403, "SignatureDoesNotMatch");
  if (header(request, "x-goog-date").empty() || header(request, "x-goog-content-sha256").empty())
    return error(403, "AccessDenied");
  if (request.method == "PUT" && !request.body.empty()) {
    std::uint32_t crc = 0;
    for (const auto piece : request.body) crc = bucket::crc32c(piece, crc);
    const std::string bytes{static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                            static_cast<char>(crc >> 8), static_cast<char>(crc)};
    const std::string sent = header(request, "x-goog-hash");
    if (sent != "crc32c=" + base64_of(bytes)) return error(400, "BadDigest");
  }
  const std::string wanted = header(request, "x-goog-if-generation-match");
  if (wanted.empty()) return std::nullopt;
  const auto found = objects.find(request.key);
  const std::string there = found == objects.end() ? "0" : generation_of(found->second);
  if (there != wanted) return error(412, "PreconditionFailed");
  return std::nullopt;
}

MemoryServer::Response MemoryServer::carry_out(const Request& request) {
  if (is_google) {
    if (auto refused = refuse(request)) return *refused;
  }
  const auto upload = parameter(request, "uploadId");
  if (request.key.empty())
    return parameter(request, "uploads") ? list_uploads(request) : list(request);
  if (request.method == "PUT") return upload ? put_part(request, *upload) : put(request);
  if (request.method == "POST") return upload ? complete(*upload) : begin(request);
  if (request.method == "DELETE") {
    if (upload) return uploads.erase(*upload) > 0 ? answer(204) : error(404, "NoSuchUpload");
    const bool was_there = objects.erase(request.key) > 0;
    return was_there || !is_google ? answer(204) : error(404, "NoSuchKey");
  }
  return read(request);
}

MemoryServer::Response MemoryServer::read(const Request& request) {
  const auto found = objects.find(request.key);
  if (found == objects.end())
    return request.method == "HEAD" ? answer(404) : error(404, "NoSuchKey");
  const std::string& content = found->second;
  const std::string wanted = header(request, "if-match");
  if (!wanted.empty() && wanted != tag_of(content)) return error(412, "PreconditionFailed");
  Response response = answer(200);
  response.headers.push_back({"etag", tag_of(content)});
  if (is_google) response.headers.push_back({"x-goog-generation", generation_of(content)});
  response.headers.push_back({"last-modified", time});
  if (request.method == "HEAD") {
    response.headers.push_back({"content-length", std::to_string(content.size())});
    return response;
  }
  if (!request.range || request.range->offset >= content.size()) return error(416, "InvalidRange");
  const std::string piece = content.substr(request.range->offset, request.range->bytes);
  if (piece.size() != request.target.size()) return error(416, "InvalidRange");
  response.status = 206;
  response.headers.push_back(
      {"content-range", fmt::format("bytes {}-{}/{}", request.range->offset,
                                    request.range->offset + piece.size() - 1, content.size())});
  std::copy(piece.begin(), piece.end(), reinterpret_cast<char*>(request.target.data()));
  return response;
}

MemoryServer::Response MemoryServer::put(const Request& request) {
  const auto found = objects.find(request.key);
  const std::string wanted = header(request, "if-match");
  const bool must_be_absent = header(request, "if-none-match") == "*";
  if (!ignores_conditions && !is_google) {  // Google ignores these conditions of writes.
    if (must_be_absent && found != objects.end()) return error(412, "PreconditionFailed");
    if (!wanted.empty() && found == objects.end()) return error(404, "NoSuchKey");
    if (!wanted.empty() && wanted != tag_of(found->second)) return error(412, "PreconditionFailed");
  }
  objects[request.key] = body_of(request);
  Response response = answer(200);
  response.headers.push_back({"etag", tag_of(objects[request.key])});
  return response;
}

MemoryServer::Response MemoryServer::begin(const Request& request) {
  const std::string id = fmt::format("upload-{}", ++last_upload_);
  uploads[id] = request.key;
  return answer(200, "<InitiateMultipartUploadResult><UploadId>" + id +
                         "</UploadId></InitiateMultipartUploadResult>");
}
MemoryServer::Response MemoryServer::put_part(const Request& request, const std::string& id) {
  if (!uploads.contains(id)) return error(404, "NoSuchUpload");
  const auto number = std::stoul(parameter(request, "partNumber").value());
  parts_[id][number] = body_of(request);
  Response response = answer(200);
  response.headers.push_back({"etag", tag_of(parts_[id][number])});
  response.headers.push_back({"x-amz-checksum-crc32", header(request, "x-amz-checksum-crc32")});
  return response;
}
MemoryServer::Response MemoryServer::complete(const std::string& id) {
  const auto found = uploads.find(id);
  if (found == uploads.end()) return error(404, "NoSuchUpload");
  std::string content;
  for (const auto& [number, part] : parts_[id]) content += part;
  objects[found->second] = content;
  uploads.erase(found);
  return answer(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>");
}

MemoryServer::Response MemoryServer::list(const Request& request) {
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
    text += summed.empty() ? fmt::format(
                                 "<Contents><Key>{}</Key><Size>{}</Size>"
                                 "<LastModified>{}</LastModified></Contents>",
                                 key, content.size(), written)
                           : "<CommonPrefixes><Prefix>" + summed + "</Prefix></CommonPrefixes>";
  }
  const std::string token =
      is_cut ? "<NextContinuationToken>" + last + "</NextContinuationToken>" : "";
  return answer(200, fmt::format("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3\">"
                                 "<IsTruncated>{}</IsTruncated>{}{}</ListBucketResult>",
                                 is_cut ? "true" : "false", token, text));
}
MemoryServer::Response MemoryServer::list_uploads(const Request& request) {
  const std::string prefix = parameter(request, "prefix").value_or("");
  std::string text;
  for (const auto& [id, key] : uploads) {
    if (key.starts_with(prefix))
      text += "<Upload><Key>" + key + "</Key><UploadId>" + id + "</UploadId><Initiated>" + written +
              "</Initiated></Upload>";
  }
  return answer(200, "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>" + text +
                         "</ListMultipartUploadsResult>");
}

}  // namespace ckpt::test
