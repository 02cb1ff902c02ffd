#include "format/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "format/codec.hpp"
#include "format/json.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t step_digits = 20;  // The digits of 2^64 - 1.
constexpr std::string_view before_timeline = R"({"__metadata__":{"format":"pt","timeline":")";
constexpr std::string_view before_step = R"(","step":")";
constexpr std::size_t timeline_offset = safetensors_length_bytes + before_timeline.size();
constexpr std::size_t step_offset = timeline_offset + step_digits + before_step.size();
static_assert(timeline_offset == 51 && step_offset == 81);  // The values in docs/format.md.

void write_digits(std::span<std::byte> target, std::uint64_t value) {
  for (std::size_t index = target.size(); index-- > 0; value /= 10)
    target[index] = static_cast<std::byte>('0' + value % 10);
  CKPT_ASSERT(value == 0);
}

// {"lm_head.weight":"embed.weight"}: maps an alias to the name that holds the bytes.
std::string aliases_json(const Layout& layout) {
  std::string out;
  for (const auto& tensor : layout.tensors) {
    if (tensor.alias_of.empty()) continue;
    out += out.empty() ? "{" : ",";
    append_json(out, tensor.name);
    out += ":";
    append_json(out, tensor.alias_of);
  }
  if (!out.empty()) out += "}";
  return out;
}

template <class Number>
void append_list(std::string& out, std::span<const Number> numbers) {
  out += "[";
  for (const Number number : numbers) {
    if (out.back() != '[') out += ",";
    append_json(out, static_cast<std::uint64_t>(number));
  }
  out += "]";
}

bool is_in_header(const TensorPlace& tensor) {
  return tensor.member == 0 && tensor.alias_of.empty();
}

// {"w":{"global_shape":[8,4],"offset":[4,0],"copy":0}}: the pieces, in our own words.
std::string pieces_json(const Layout& layout) {
  std::string out = "{";
  for (const TensorPlace& tensor : layout.tensors) {
    if (!is_in_header(tensor) || !tensor.piece) continue;
    const Piece& piece = *tensor.piece;
    if (out.size() > 1) out += ",";
    append_json(out, tensor.name);
    out += R"(:{"global_shape":)";
    append_list<std::uint64_t>(out, piece.global_shape);
    if (piece.flat_begin) {
      out += R"(,"flat_begin":)";
      append_json(out, *piece.flat_begin);
    } else {
      out += R"(,"offset":)";
      append_list<std::uint64_t>(out, piece.offset);
    }
    if (!piece.order.empty()) {
      out += R"(,"order":)";
      append_list<std::uint8_t>(out, piece.order);
    }
    out += R"(,"copy":)";
    append_json(out, std::uint64_t{piece.copy});
    out += "}";
  }
  return out + "}";
}

// {"w":{"saved_offsets":[4,0]}}: where each tensor of the file lies, for torch's reader of sharded
// safetensors files. It counts in the dimensions of the file, wants every tensor, and takes a flat
// range for a part of a tensor of one dimension.
std::string offsets_json(const Layout& layout) {
  std::string out = "{";
  for (const TensorPlace& tensor : layout.tensors) {
    if (!is_in_header(tensor)) continue;
    std::vector<std::uint64_t> offsets(tensor.shape.size(), 0);
    if (tensor.piece && tensor.piece->flat_begin) {
      offsets = {*tensor.piece->flat_begin};
    } else if (tensor.piece) {
      const Piece& piece = *tensor.piece;
      for (std::size_t place = 0; place < offsets.size(); ++place)
        offsets[place] = piece.offset[piece.order.empty() ? place : piece.order[place]];
    }
    if (out.size() > 1) out += ",";
    append_json(out, tensor.name);
    out += R"(:{"saved_offsets":)";
    append_list<std::uint64_t>(out, offsets);
    out += "}";
  }
  return out + "}";
}

void append_placed(std::string& out, const TensorPlace& tensor, std::uint64_t data_offset) {
  append_json(out, tensor.name);
  out += R"(:{"dtype":")";
  out += safetensors_name(tensor.dtype);
  out += R"(","shape":)";
  append_list<std::int64_t>(out, tensor.shape);
  out += R"(,"data_offsets":[)";
  append_json(out, tensor.extent.offset - data_offset);
  out += ",";
  append_json(out, tensor.extent.end() - data_offset);
  out += "]}";
}

}  // namespace

HeaderFacts widest_facts() {
  HeaderFacts facts;
  facts.job = std::string(job_bytes_max, '\x01');  // Six bytes each when escaped.
  facts.run = to_hex(Digest{});
  facts.rank = UINT32_MAX;
  facts.world_size = UINT32_MAX;
  return facts;
}

std::string header_json(const Layout& layout, const HeaderFacts& facts) {
  CKPT_ASSERT(!layout.members.empty());
  const Member& member = layout.members.front();
  std::string out = fmt::format("{}{:020}{}{:020}", before_timeline, facts.timeline, before_step,
                                number(facts.step));
  out += R"(","job":)";
  append_json(out, facts.job);
  out += R"(,"run":)";
  append_json(out, facts.run);
  out += fmt::format(R"(,"rank":"{}","world_size":"{}")", facts.rank, facts.world_size);
  if (const std::string aliases = aliases_json(layout); !aliases.empty()) {
    out += R"(,"libckpt.aliases":)";
    append_json(out, aliases);
  }
  const bool has_pieces = std::ranges::any_of(layout.tensors, [](const TensorPlace& tensor) {
    return is_in_header(tensor) && tensor.piece.has_value();
  });
  if (has_pieces) {
    out += R"(,"libckpt.pieces":)";
    append_json(out, pieces_json(layout));
    out += R"(,"DCP_SHARDING_INFO":)";
    append_json(out, offsets_json(layout));
    out += R"(,"DCP_VERSION":"1.0")";
  }
  out += "}";
  const std::uint64_t data_offset = member.extent.offset + member.header_bytes;
  for (const auto& tensor : layout.tensors) {
    if (!is_in_header(tensor)) continue;
    out += ",";
    append_placed(out, tensor, data_offset);
  }
  out += "}";
  return out;
}

Result<std::vector<std::byte>> render_header(const Layout& layout, const HeaderFacts& facts) {
  if (layout.members.empty() || layout.members.front().kind != MemberKind::safetensors)
    return fail(Errc::invalid_argument, "render a header: the layout has no safetensors file");
  if (facts.job.size() > job_bytes_max || !is_utf8(facts.job))
    return fail(Errc::invalid_argument,
                fmt::format("job name: it must be UTF-8 of at most {} bytes", job_bytes_max));
  if (!digest_from_hex(facts.run))
    return fail(Errc::invalid_argument, "run id: it must be 32 lower-case hexadecimal digits");
  const std::string json = header_json(layout, facts);
  const std::uint64_t header_bytes = layout.members.front().header_bytes;
  if (safetensors_length_bytes + json.size() > header_bytes)
    return fail(Errc::invalid_argument,
                fmt::format("render a header: {} bytes do not fit the {} of the layout",
                            safetensors_length_bytes + json.size(), header_bytes));
  Writer writer;
  writer.reserve(header_bytes);
  writer.u64(header_bytes - safetensors_length_bytes);
  writer.raw(std::as_bytes(std::span(json)));
  auto bytes = writer.take();
  bytes.resize(header_bytes, static_cast<std::byte>(' '));
  return bytes;
}

void patch_header(std::span<std::byte> header, std::uint64_t timeline, Step step) {
  CKPT_ASSERT(header.size() > step_offset + step_digits);
  CKPT_ASSERT(std::memcmp(header.data() + safetensors_length_bytes, before_timeline.data(),
                          before_timeline.size()) == 0);
  write_digits(header.subspan(timeline_offset, step_digits), timeline);
  write_digits(header.subspan(step_offset, step_digits), number(step));
}

}  // namespace ckpt::format
