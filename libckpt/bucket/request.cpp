#include "bucket/request.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::bucket {

std::string percent_encode(std::string_view text, bool keeps_slashes) {
  std::string out;
  for (const char letter : text) {
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                          (letter >= '0' && letter <= '9') || letter == '-' || letter == '.' ||
                          letter == '_' || letter == '~' || (keeps_slashes && letter == '/');
    if (is_plain) {
      out += letter;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(letter)));
    }
  }
  return out;
}

Result<Origin> parse_origin(std::string_view url) {
  const auto problem = [&](std::string_view what) {
    return fail(Errc::invalid_argument, fmt::format("the endpoint \"{}\": {}", url, what));
  };
  Origin origin;
  const auto colon = url.find("://");
  if (colon == std::string_view::npos) return problem("it must begin with http:// or https://");
  origin.scheme = url.substr(0, colon);
  if (origin.scheme != "http" && origin.scheme != "https")
    return problem("it must begin with http:// or https://");
  std::string_view rest = url.substr(colon + 3);
  if (rest.find_first_of("?#@ \\") != std::string_view::npos)
    return problem("it may have a host, a port and a path, and nothing else");
  origin.host = rest.substr(0, rest.find('/'));
  if (origin.host.empty()) return problem("it has no host");
  origin.path = rest.substr(origin.host.size());
  while (origin.path.ends_with('/')) origin.path.pop_back();
  const std::string_view own_port = origin.scheme == "http" ? ":80" : ":443";
  if (origin.host.ends_with(own_port)) origin.host.resize(origin.host.size() - own_port.size());
  return origin;
}

std::uint64_t Request::body_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto piece : body) bytes += piece.size();
  return bytes;
}

std::string Request::encoded_path() const {
  return origin.path + "/" + percent_encode(key, true);
}

std::string Request::encoded_query() const {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encode(name, false), percent_encode(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out += name + "=" + value;
  }
  return out;
}

std::string Request::url() const {
  std::string out = origin.scheme + "://" + origin.host + encoded_path();
  if (!query.empty()) out += "?" + encoded_query();
  return out;
}

std::string_view Response::header(std::string_view name) const {
  for (const Header& header : headers)
    if (header.name == name) return header.value;
  return {};
}

}  // namespace ckpt::bucket
