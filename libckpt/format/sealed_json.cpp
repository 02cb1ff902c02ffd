#include "format/sealed_json.hpp"

#include <fmt/format.h>

#include <span>

#include "base/assert.hpp"
#include "format/codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view seal_begin = R"("digest":")";
constexpr std::string_view seal_end = "\"}\n";
constexpr std::size_t digest_digits = 32;
constexpr std::size_t seal_bytes = seal_begin.size() + digest_digits + seal_end.size();

Digest digest_of_text(std::string_view text) {
  return ckpt::digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

std::string begin_sealed_json(std::string_view format, std::uint64_t version) {
  return fmt::format("{{\"format\":\"{}\",\"format_version\":{},\n", format, version);
}

std::string seal_json(std::string text) {
  CKPT_ASSERT(text.ends_with(",\n"));
  const Digest digest = digest_of_text(text);
  text += seal_begin;
  text += to_hex(digest);
  text += seal_end;
  return text;
}

Result<JsonReader> open_sealed_json(std::string_view text, std::string_view format,
                                    std::string_view what, std::uint64_t version_max,
                                    std::uint64_t* version) {
  const auto broken = [&](std::string_view problem) {
    return fail(Errc::corruption, fmt::format("{}: {}", what, problem));
  };
  if (text.size() < seal_bytes) return broken("it is cut off");
  const auto body = text.substr(0, text.size() - seal_bytes);
  const auto seal = text.substr(body.size());
  const auto digest = digest_from_hex(seal.substr(seal_begin.size(), digest_digits));
  if (!seal.starts_with(seal_begin) || !seal.ends_with(seal_end) || !digest)
    return broken("it does not end with a digest");
  if (*digest != digest_of_text(body)) return broken("its bytes do not match its digest");

  JsonReader reader(text, what);
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(const auto found, reader.string_member("format"));
  if (found != format) return broken(fmt::format("it is a \"{}\"", found.substr(0, 100)));
  CKPT_TRY(const auto found_version, reader.integer_member("format_version"));
  if (found_version == 0 || found_version > version_max)
    return fail(Errc::version_mismatch,
                fmt::format("{}: it has format version {}, this program reads {}{}", what,
                            found_version, version_max > 1 ? "1 to " : "", version_max));
  if (version != nullptr) *version = found_version;
  return reader;
}

Status finish_sealed_json(JsonReader& reader) {
  CKPT_CHECK(digest_member(reader, "digest"));
  CKPT_CHECK(reader.end_object());
  return reader.finish();
}

void append_json(std::string& out, const Digest& digest) {
  append_json(out, std::string_view(to_hex(digest)));
}

Result<Digest> digest_member(JsonReader& reader, std::string_view key) {
  CKPT_TRY(const auto text, reader.string_member(key));
  const auto digest = digest_from_hex(text);
  if (!digest) return reader.problem(fmt::format("\"{}\" is not 32 hexadecimal digits", key));
  return *digest;
}

}  // namespace ckpt::format
