// Secret: the shared secret of a job's nodes, and the proofs made from it.
//
// It never leaves the process: only HMACs under keys derived from it do.
//
// Memory: wiped when destroyed.
#pragma once

#include <array>
#include <ckpt/result.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::wire {

inline constexpr std::size_t proof_bytes = 32;  // For HMAC-SHA256, and for its keys.
using Proof = std::array<std::byte, proof_bytes>;

inline constexpr std::size_t secret_bytes_min = 16;  // 128 bits, if they are random.
inline constexpr std::size_t secret_bytes_max = 4096;

class Secret {
 public:
  // Errors: invalid_argument (too short, too long).
  static Result<Secret> make(std::span<const std::byte> bytes);
  // The file's content without a newline at its end. The file must be regular, ours, and closed to
  // group and others. Errors: invalid_argument, not_found, io.
  static Result<Secret> read_file(const std::string& path);

  Secret(Secret&&) noexcept = default;
  Secret& operator=(Secret&&) noexcept = default;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Secret(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::vector<std::byte> bytes_;
};

// HKDF-SHA256 (RFC 5869), one block of output.
Proof derive_key(std::span<const std::byte> secret, std::string_view salt,
                 std::span<const std::byte> info);
// HMAC-SHA256.
Proof make_proof(const Proof& key, std::span<const std::byte> message);
// Takes the same time wherever they differ.
bool is_same(std::span<const std::byte> left, std::span<const std::byte> right);

Proof random_bytes();  // From the system; for nonces.

}  // namespace ckpt::wire
