#include "bucket/signature.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/assert.hpp"

namespace ckpt::bucket {

namespace {

constexpr std::uint64_t hashed_body_bytes_max = 1u << 20;
constexpr std::size_t sha256_bytes = 32;
using Hash = std::array<unsigned char, sha256_bytes>;

std::string hex(const Hash& hash) {
  std::string text;
  for (const unsigned char byte : hash) text += fmt::format("{:02x}", unsigned{byte});
  return text;
}

Hash sha256_of(const std::vector<std::span<const std::byte>>& pieces) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  Hash hash{};
  unsigned length = 0;
  bool is_done = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const auto piece : pieces)
    is_done = is_done && EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1;
  is_done = is_done && EVP_DigestFinal_ex(context.get(), hash.data(), &length) == 1;
  CKPT_ASSERT(is_done);  // It fails only without memory.
  return hash;
}

Hash hmac(std::string_view key, std::string_view text) {
  Hash hash{};
  unsigned length = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data(), &length);
  CKPT_ASSERT(done != nullptr);
  return hash;
}

std::string_view bytes_of(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

struct Canonical {
  std::string text;
  std::string signed_names;
};

Canonical canonical_form(const Request& request, const std::string& body_hash) {
  std::vector<std::pair<std::string, std::string>> headers;
  headers.emplace_back("host", request.origin.host);
  for (const Header& header : request.headers) headers.emplace_back(header.name, header.value);
  std::sort(headers.begin(), headers.end());
  Canonical canonical;
  std::string lines;
  for (const auto& [name, value] : headers) {
    lines += name + ":" + value + "\n";
    if (!canonical.signed_names.empty()) canonical.signed_names += ';';
    canonical.signed_names += name;
  }
  canonical.text = request.method + "\n" + request.encoded_path() + "\n" + request.encoded_query() +
                   "\n" + lines + "\n" + canonical.signed_names + "\n" + body_hash;
  return canonical;
}

}  // namespace

std::string sha256_hex(std::string_view text) {
  return hex(sha256_of({std::as_bytes(std::span(text))}));
}

void sign(Request& request, const Keys& keys, const SigningScope& scope) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(scope.time.time_since_epoch());
  const std::string when =
      fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds.count())));
  const std::string day = when.substr(0, 8);
  const std::string body_hash = request.body_bytes() <= hashed_body_bytes_max
                                    ? hex(sha256_of(request.body))
                                    : "UNSIGNED-PAYLOAD";
  const Dialect& dialect = scope.dialect;
  const std::string end(dialect.scope_end);
  request.headers.push_back({std::string(dialect.date_header), when});
  if (scope.service == dialect.service)
    request.headers.push_back({std::string(dialect.body_hash_header), body_hash});
  if (!keys.session_token.empty())
    request.headers.push_back({std::string(dialect.token_header), keys.session_token});

  const Canonical canonical = canonical_form(request, body_hash);
  const std::string area = day + "/" + scope.region + "/" + scope.service + "/" + end;
  const std::string to_sign = std::string(dialect.algorithm) + "\n" + when + "\n" + area + "\n" +
                              sha256_hex(canonical.text);
  Hash key = hmac(std::string(dialect.key_prefix) + keys.secret_key, day);
  key = hmac(bytes_of(key), scope.region);
  key = hmac(bytes_of(key), scope.service);
  key = hmac(bytes_of(key), end);
  request.headers.push_back(
      {"authorization", fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}",
                                    dialect.algorithm, keys.access_key, area,
                                    canonical.signed_names, hex(hmac(bytes_of(key), to_sign)))});
}

}  // namespace ckpt::bucket
