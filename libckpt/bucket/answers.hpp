// Answers: reads the XML that servers answer with, and writes the little that they are sent.
//
// A server is not trusted to be one: deep nesting and missing fields are errors, not crashes.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/signature.hpp"

namespace ckpt::bucket {

struct ListedObject {
  std::string key;
  std::uint64_t bytes = 0;
  std::optional<std::chrono::system_clock::time_point> modified;
};
struct ListedPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes;  // With the slash at their end.
  std::string next;                   // The token of the next page; empty: this is the last one.
};
Result<ListedPage> parse_list(std::string_view text);

struct StartedUpload {
  std::string key;
  std::string id;
  std::optional<std::chrono::system_clock::time_point> begun;
};
struct UploadsPage {
  std::vector<StartedUpload> uploads;
  std::string next_key;  // Empty: this is the last page.
  std::string next_id;
};
Result<UploadsPage> parse_uploads(std::string_view text);

Result<std::string> parse_upload_id(std::string_view text);

struct AssumedRole {
  Keys keys;
  std::string expiration;
};
Result<AssumedRole> parse_assumed_role(std::string_view text);

struct ServerError {
  std::string code;  // "NoSuchKey"; empty: the answer was no error of S3.
  std::string message;
};
ServerError parse_error(std::string_view text);

struct UploadedPart {
  std::string tag;
  std::string checksum;  // Base64.
};
std::string render_parts(const std::vector<UploadedPart>& parts);

}  // namespace ckpt::bucket
