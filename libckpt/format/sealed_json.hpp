// SealedJson: a JSON file of ours whose last member is the digest of every byte before it.
//
//   {"format":"libckpt-run","format_version":1,
//   ...
//   "digest":"<32 lower-case hexadecimal digits>"}<newline>
//
// The digest is XXH3-128 of the bytes before `"digest"`. No byte can change unnoticed: the bytes
// after it are compared with the only form they may have.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/checksum.hpp"
#include "format/json.hpp"

namespace ckpt::format {

// The first line, including its comma.
std::string begin_sealed_json(std::string_view format, std::uint64_t version = 1);
// `text` must end with a comma and a newline.
std::string seal_json(std::string text);

// Checks the digest and the first line, then stops at the file's own members. `version`, unless
// null, gets that of the file. Errors: corruption, version_mismatch (above `version_max`).
Result<JsonReader> open_sealed_json(std::string_view text, std::string_view format,
                                    std::string_view what, std::uint64_t version_max = 1,
                                    std::uint64_t* version = nullptr);
// Reads the digest member and the end.
Status finish_sealed_json(JsonReader& reader);

void append_json(std::string& out, const Digest& digest);
Result<Digest> digest_member(JsonReader& reader, std::string_view key);

}  // namespace ckpt::format
