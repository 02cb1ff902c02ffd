#include "wire/secret.hpp"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/assert.hpp"
#include "os/small_file.hpp"

namespace ckpt::wire {

namespace {

// A secret that others can read is not secret.
Status check_owner(const struct stat& status, const std::string& path) {
  if (status.st_uid != ::geteuid())
    return fail(
        Errc::invalid_argument,
        fmt::format("read secret file {}: it belongs to user {}, not to user {} that runs us", path,
                    status.st_uid, ::geteuid()));
  if ((status.st_mode & 077) != 0)
    return fail(Errc::invalid_argument,
                fmt::format("read secret file {}: its mode {:04o} opens it to group or others; "
                            "chmod 600 it",
                            path, status.st_mode & 07777));
  return Status();
}

const unsigned char* as_unsigned(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Result<Secret> Secret::make(std::span<const std::byte> bytes) {
  if (bytes.size() < secret_bytes_min)
    return fail(Errc::invalid_argument,
                fmt::format("the job's secret has {} bytes; at least {} are needed, as from "
                            "`head -c 32 /dev/urandom | base64`",
                            bytes.size(), secret_bytes_min));
  if (bytes.size() > secret_bytes_max)
    return fail(Errc::invalid_argument,
                fmt::format("the job's secret has more than {} bytes", secret_bytes_max));
  return Secret(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

Result<Secret> Secret::read_file(const std::string& path) {
  auto fd = os::open_regular_file(path);
  if (!fd) return fail(std::move(fd).error().context("secret file"));
  struct stat status{};
  if (::fstat(fd->number(), &status) != 0) return os::fail_system("look at secret file " + path);
  CKPT_CHECK(check_owner(status, path));
  // Room for a newline, and for one byte more than is allowed, to notice a longer file.
  std::vector<std::byte> room(secret_bytes_max + 3);
  const auto read = os::read_whole(*fd, room, path);
  if (!read && read.error().code() != Errc::exhausted) return fail(Error(read.error()));
  std::size_t size = read ? *read : room.size();
  if (size > 0 && room[size - 1] == std::byte('\n')) --size;
  if (size > 0 && room[size - 1] == std::byte('\r')) --size;
  auto secret = make(std::span(room).first(size));
  OPENSSL_cleanse(room.data(), room.size());
  if (!secret) return fail(std::move(secret).error().context("read secret file " + path));
  return secret;
}

Secret::~Secret() {
  if (!bytes_.empty()) OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

Proof derive_key(std::span<const std::byte> secret, std::string_view salt,
                 std::span<const std::byte> info) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> algorithm(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  CKPT_ASSERT(algorithm != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(algorithm.get()), &EVP_KDF_CTX_free);
  CKPT_ASSERT(context != nullptr);
  char hash[] = "SHA256";
  // The library only reads through these pointers; its parameter type does not say so.
  const std::array<OSSL_PARAM, 5> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(secret.data()),
                                        secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, const_cast<char*>(salt.data()),
                                        salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<std::byte*>(info.data()),
                                        info.size()),
      OSSL_PARAM_construct_end()};
  Proof key{};
  const int derived = EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()),
                                     key.size(), parameters.data());
  CKPT_ASSERT(derived == 1);
  return key;
}

Proof make_proof(const Proof& key, std::span<const std::byte> message) {
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), as_unsigned(message),
           message.size(), reinterpret_cast<unsigned char*>(proof.data()), &size);
  CKPT_ASSERT(made != nullptr);
  CKPT_ASSERT(size == proof.size());
  return proof;
}

bool is_same(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

Proof random_bytes() {
  Proof bytes{};
  const int made =
      RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  CKPT_ASSERT(made == 1);
  return bytes;
}

}  // namespace ckpt::wire
