#include "bucket/answers.hpp"

#include <fmt/format.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <charconv>
#include <sstream>

#include "bucket/http_time.hpp"

namespace ckpt::bucket {

namespace {

namespace property_tree = boost::property_tree;
using Tree = property_tree::ptree;

// S3's answers have 4 levels. The parser calls itself for each level, so that a deep text would
// take the thread's whole stack.
constexpr int depth_max = 32;

bool is_too_deep(std::string_view text) {
  int depth = 0;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const bool is_end = text.substr(at + 1, 1) == "/";
    depth += is_end ? -1 : 1;
    if (depth > depth_max) return true;
    const auto end = text.find('>', at);
    if (end == std::string_view::npos) return false;  // The parser refuses it.
    if (!is_end && (text[end - 1] == '/' || text[at + 1] == '?' || text[at + 1] == '!')) --depth;
    at = end;
  }
  return false;
}

// The children of the outermost element, whatever its name is.
Result<Tree> parse(std::string_view text, std::string_view what) {
  if (is_too_deep(text))
    return fail(Errc::io, fmt::format("read {}: it is nested too deeply", what));
  std::istringstream stream{std::string(text)};
  Tree tree;
  try {
    property_tree::read_xml(stream, tree, property_tree::xml_parser::no_comments);
  } catch (const property_tree::xml_parser_error& error) {
    return fail(Errc::io, fmt::format("read {}: {}", what, error.message()));
  }
  if (tree.empty()) return fail(Errc::io, fmt::format("read {}: it is empty", what));
  return tree.front().second;
}

std::string text_in(const Tree& tree, const char* name) {
  return tree.get<std::string>(name, "");
}

bool is_yes(const std::string& text) {
  return text == "true";
}

Result<std::uint64_t> number_in(const Tree& tree, const char* name) {
  const std::string text = text_in(tree, name);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return value;
  return fail(Errc::io, fmt::format("read a listing: \"{}\" is no {}", text, name));
}

}  // namespace

Result<ListedPage> parse_list(std::string_view text) {
  CKPT_TRY(const Tree tree, parse(text, "a listing"));
  ListedPage page;
  for (const auto& [name, child] : tree) {
    if (name == "Contents") {
      ListedObject object;
      object.key = text_in(child, "Key");
      CKPT_TRY(object.bytes, number_in(child, "Size"));
      object.modified = parse_iso_time(text_in(child, "LastModified"));
      if (object.key.empty()) return fail(Errc::io, "read a listing: an object without a key");
      page.objects.push_back(std::move(object));
    } else if (name == "CommonPrefixes") {
      page.prefixes.push_back(text_in(child, "Prefix"));
    }
  }
  if (!is_yes(text_in(tree, "IsTruncated"))) return page;
  page.next = text_in(tree, "NextContinuationToken");
  // Else a listing that was cut off would count as whole.
  if (page.next.empty()) return fail(Errc::io, "read a listing: its next page has no token");
  return page;
}

Result<UploadsPage> parse_uploads(std::string_view text) {
  CKPT_TRY(const Tree tree, parse(text, "a list of uploads"));
  UploadsPage page;
  for (const auto& [name, child] : tree) {
    if (name != "Upload") continue;
    page.uploads.push_back({text_in(child, "Key"), text_in(child, "UploadId"),
                            parse_iso_time(text_in(child, "Initiated"))});
  }
  if (!is_yes(text_in(tree, "IsTruncated"))) return page;
  page.next_key = text_in(tree, "NextKeyMarker");
  page.next_id = text_in(tree, "NextUploadIdMarker");
  if (page.next_key.empty())
    return fail(Errc::io, "read a list of uploads: its next page has no marker");
  return page;
}

Result<std::string> parse_upload_id(std::string_view text) {
  CKPT_TRY(const Tree tree, parse(text, "the start of an upload"));
  std::string id = text_in(tree, "UploadId");
  if (id.empty()) return fail(Errc::io, "read the start of an upload: it has no number");
  return id;
}

Result<AssumedRole> parse_assumed_role(std::string_view text) {
  CKPT_TRY(const Tree tree, parse(text, "the keys of a web identity"));
  const auto found = tree.get_child_optional("AssumeRoleWithWebIdentityResult.Credentials");
  if (!found) return fail(Errc::io, "read the keys of a web identity: there are none");
  AssumedRole role;
  role.keys = {text_in(*found, "AccessKeyId"), text_in(*found, "SecretAccessKey"),
               text_in(*found, "SessionToken")};
  role.expiration = text_in(*found, "Expiration");
  if (role.keys.access_key.empty() || role.keys.secret_key.empty())
    return fail(Errc::io, "read the keys of a web identity: there are none");
  return role;
}

ServerError parse_error(std::string_view text) {
  if (text.find("<Error>") == std::string_view::npos) return {};
  const auto tree = parse(text, "an error");
  if (!tree) return {};
  return {text_in(*tree, "Code"), text_in(*tree, "Message")};
}

std::string render_parts(const std::vector<UploadedPart>& parts) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t index = 0; index < parts.size(); ++index) {
    std::string tag;  // A tag stands in quotes.
    for (const char letter : parts[index].tag) {
      if (letter == '"') {
        tag += "&quot;";
      } else if (letter != '<' && letter != '&') {
        tag += letter;
      }
    }
    text += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", index + 1, tag);
    if (!parts[index].checksum.empty())
      text += fmt::format("<ChecksumCRC32>{}</ChecksumCRC32>", parts[index].checksum);
    text += "</Part>";
  }
  return text + "</CompleteMultipartUpload>";
}

}  // namespace ckpt::bucket
