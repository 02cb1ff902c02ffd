#include "bucket/bucket_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "os/path.hpp"

namespace ckpt::bucket {

namespace {

// S3's own rules for names; they also keep a name from changing the host that is called.
bool is_bucket_name(std::string_view name) {
  const auto is_plain = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
  };
  if (name.size() < 3 || name.size() > 63) return false;
  if (!is_plain(name.front()) || !is_plain(name.back())) return false;
  return std::ranges::all_of(
      name, [&](char letter) { return is_plain(letter) || letter == '-' || letter == '.'; });
}

// The scheme of "name://rest"; empty: a path of files.
std::string_view scheme_of(std::string_view path) {
  const auto end = path.find("://");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view name = path.substr(0, end);
  const bool is_word = std::ranges::all_of(name, [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '+' || letter == '-';
  });
  return is_word ? name : std::string_view();
}

std::string_view advice_for(std::string_view name) {
  if (name == "gcs") return "write gs:// instead";
  if (name == "az" || name == "abfs" || name == "abfss" || name == "wasb" || name == "wasbs") {
    return "mount the container and name the mounted directory, or use an S3 gateway with s3://";
  }
  if (name == "s3a" || name == "s3n") return "write s3:// instead";
  if (name == "file") return "write the plain path instead";
  return "use a directory, s3://bucket/prefix or gs://bucket/prefix";
}

}  // namespace

const Dialect& dialect_of(Scheme scheme) {
  return scheme == Scheme::gs ? google : amazon;
}

bool is_bucket_path(std::string_view path) {
  return path.starts_with(amazon.scheme) || path.starts_with(google.scheme);
}

std::string to_text(const BucketPath& place) {
  const std::string text = std::string(dialect_of(place.scheme).scheme) + place.bucket;
  return place.key.empty() ? text : text + "/" + place.key;
}

std::string prefix_of(const BucketPath& place) {
  return place.key.empty() ? "" : place.key + "/";
}

Result<BucketPath> parse_bucket_path(std::string_view path) {
  const auto problem = [&](std::string_view what) {
    return fail(Errc::invalid_argument, fmt::format("the path {}: {}", os::display(path), what));
  };
  if (!is_bucket_path(path)) return problem("it does not begin with s3:// or gs://");
  BucketPath place;
  if (path.starts_with(google.scheme)) place.scheme = Scheme::gs;
  std::string_view rest = path.substr(dialect_of(place.scheme).scheme.size());
  place.bucket = rest.substr(0, rest.find('/'));
  rest.remove_prefix(place.bucket.size());
  if (place.bucket.empty()) {
    return problem(
        fmt::format("it names no bucket: write {}BUCKET/PREFIX", dialect_of(place.scheme).scheme));
  }
  if (!is_bucket_name(place.bucket)) {
    return problem(fmt::format("no bucket can have the name \"{}\"", place.bucket));
  }
  while (!rest.empty()) {
    rest.remove_prefix(1);  // The slash.
    const std::string_view name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(name.size());
    if (name.empty() || name == ".") continue;
    if (name == "..") return problem("\"..\" in it");
    if (std::ranges::any_of(name,
                            [](char letter) { return static_cast<unsigned char>(letter) < ' '; }))
      return problem("a control character in it");
    if (!place.key.empty()) place.key += '/';
    place.key += name;
  }
  return place;
}

Status check_path(std::string_view path) {
  if (is_bucket_path(path)) {
    CKPT_CHECK(parse_bucket_path(path));
    return {};
  }
  if (path.starts_with("s3:/") || path.starts_with("gs:/")) {
    return fail(Errc::invalid_argument,
                fmt::format("the path {}: {}// has two slashes (a pathlib.Path drops one of them: "
                            "give a string)",
                            path, path.substr(0, 3)));
  }
  const std::string_view name = scheme_of(path);
  if (name.empty()) return {};
  return fail(Errc::invalid_argument, fmt::format("the path {}: {}:// is not supported: {}",
                                                  os::display(path), name, advice_for(name)));
}

Result<std::string> normal_path(std::string_view path) {
  CKPT_TRY(const BucketPath place, parse_bucket_path(path));
  return to_text(place);
}

}  // namespace ckpt::bucket
