// Goal:   a secret that is weak or open to others is refused, and the proofs are the standard ones.
// Method: real files with each mode; published test vectors.
#include "wire/secret.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace ckpt::wire {

namespace {

class SecretFile {
 public:
  explicit SecretFile(const std::string& content, mode_t mode = 0600) {
    char name[] = "/tmp/ckpt-secret-XXXXXX";
    const int fd = ::mkstemp(name);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    REQUIRE(::fchmod(fd, mode) == 0);
    ::close(fd);
    path_ = name;
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string text_of(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size()};
}

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < text.size(); at += 2)
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(text.substr(at, 2)), nullptr, 16)));
  return bytes;
}

const std::string sixteen = "0123456789abcdef";

}  // namespace

TEST_CASE("secret: the file's content counts, without a newline at its end", "[unit][wire]") {
  const std::string ending = GENERATE(as<std::string>(), "", "\n", "\r\n");
  const SecretFile file(sixteen + ending);
  const auto secret = Secret::read_file(file.path());
  REQUIRE(secret);
  REQUIRE(text_of(*secret) == sixteen);
}

TEST_CASE("secret: only one newline is taken off, and binary content is kept", "[unit][wire]") {
  const std::string content = std::string(20, '\0') + " \n\n";
  const SecretFile file(content);
  const auto secret = Secret::read_file(file.path());
  REQUIRE(secret);
  REQUIRE(text_of(*secret) == content.substr(0, content.size() - 1));
}

TEST_CASE("secret: a short or an endless one is refused", "[unit][wire]") {
  const std::string content = GENERATE(as<std::string>(), "", "\n", "0123456789abcde",
                                       "0123456789abcde\n", std::string(secret_bytes_max + 1, 'x'));
  const SecretFile file(content);
  const auto secret = Secret::read_file(file.path());
  REQUIRE_FALSE(secret);
  REQUIRE(secret.error().code() == Errc::invalid_argument);
  REQUIRE(secret.error().text().find(file.path()) != std::string::npos);
}

TEST_CASE("secret: a file that others may read is refused and says how to mend it",
          "[unit][wire]") {
  const mode_t mode = GENERATE(as<mode_t>(), 0640, 0604, 0620, 0666, 0610);
  const SecretFile file(sixteen, mode);
  const auto secret = Secret::read_file(file.path());
  REQUIRE_FALSE(secret);
  REQUIRE(secret.error().code() == Errc::invalid_argument);
  REQUIRE(secret.error().text().find("chmod 600") != std::string::npos);
}

TEST_CASE("secret: anything but a file is refused", "[unit][wire]") {
  const auto directory = Secret::read_file("/tmp");
  REQUIRE_FALSE(directory);
  REQUIRE(directory.error().code() == Errc::invalid_argument);
  const auto missing = Secret::read_file("/tmp/ckpt-secret-that-is-not-there");
  REQUIRE_FALSE(missing);
  REQUIRE(missing.error().code() == Errc::not_found);
}

TEST_CASE("secret: keys are those of RFC 5869", "[unit][wire]") {
  // Its first test case; the first 32 of its 42 bytes.
  const auto key =
      derive_key(from_hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"),
                 std::string_view("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c", 13),
                 from_hex("f0f1f2f3f4f5f6f7f8f9"));
  const auto expected =
      from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  REQUIRE(is_same(key, expected));
}

TEST_CASE("secret: proofs are those of RFC 4231", "[unit][wire]") {
  // Its second test case: a key is padded with zeros to the block anyway.
  Proof key{};
  const std::string jefe = "Jefe";
  std::copy(jefe.begin(), jefe.end(), reinterpret_cast<char*>(key.data()));
  const std::string message = "what do ya want for nothing?";
  const auto expected =
      from_hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  REQUIRE(is_same(make_proof(key, std::as_bytes(std::span(message))), expected));
}

TEST_CASE("secret: sameness is of all bytes and of the length", "[unit][wire]") {
  const Proof left = random_bytes();
  Proof right = left;
  REQUIRE(is_same(left, right));
  right.back() ^= std::byte(1);
  REQUIRE_FALSE(is_same(left, right));
  REQUIRE_FALSE(is_same(left, std::span(left).first(31)));
  REQUIRE(random_bytes() != random_bytes());
}

}  // namespace ckpt::wire
