#include "format/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ckpt/version.hpp>

#include "format/manifest_shard.hpp"
#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view manifest_format = "libckpt-manifest";

// Returns an empty text if the shards belong together and are complete.
std::string problem_of(const Manifest& manifest) {
  if (manifest.shards.size() != manifest.world_size)
    return fmt::format("{} shards of {} ranks", manifest.shards.size(), manifest.world_size);
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank) {
    const ShardRecord& record = manifest.shards[rank].record;
    if (record.id.rank != rank)
      return fmt::format("the shard of rank {} is missing or there twice", rank);
    if (record.job != manifest.job || record.run != manifest.run || record.id.at != manifest.at ||
        record.world_size != manifest.world_size)
      return fmt::format("the shard of rank {} is of another step, run or world size", rank);
    if (manifest.shards[rank].member_crcs.size() != record.layout.members.size())
      return fmt::format("the shard of rank {} lacks checksums of its files", rank);
  }
  return {};
}

}  // namespace

Result<Manifest> merge(std::vector<ShardPart> parts) {
  if (parts.empty()) return fail(Errc::invalid_argument, "manifest: no shards");
  std::sort(parts.begin(), parts.end(), [](const ShardPart& left, const ShardPart& right) {
    return left.record.id.rank < right.record.id.rank;
  });
  Manifest manifest;
  const ShardRecord& first = parts.front().record;
  manifest.writer = "libckpt " CKPT_VERSION_STRING;
  manifest.job = first.job;
  manifest.run = first.run;
  manifest.at = first.id.at;
  manifest.world_size = first.world_size;
  manifest.shards = std::move(parts);
  if (const auto problem = problem_of(manifest); !problem.empty())
    return fail(Errc::invalid_argument, "manifest: " + problem);
  return manifest;
}

Result<std::string> render(const Manifest& manifest) {
  if (const auto problem = problem_of(manifest); !problem.empty())
    return fail(Errc::invalid_argument, "manifest: " + problem);
  std::string out = begin_sealed_json(manifest_format);
  const auto field = [&](std::string_view key, const auto& value) {
    append_json(out, key);
    out += ":";
    append_json(out, value);
    out += ",";
  };
  field("writer", std::string_view(manifest.writer));
  field("created_unix_seconds", manifest.created_unix_seconds);
  out += "\n";
  field("job", std::string_view(manifest.job));
  field("run", manifest.run);
  field("timeline", manifest.at.timeline);
  field("step", number(manifest.at.step));
  field("world_size", std::uint64_t{manifest.world_size});
  out += "\n\"topology\":{";
  field("members", manifest.members);
  out += "\"nodes\":[";
  for (const auto& node : manifest.nodes) {
    if (out.back() != '[') out += ",";
    append_json(out, node);
  }
  out += "]},\n\"shards\":[\n";
  for (const auto& shard : manifest.shards) {
    if (&shard != &manifest.shards.front()) out += ",\n";
    append_shard(out, shard);
    if (out.size() > manifest_bytes_max)
      return fail(Errc::exhausted,
                  fmt::format("manifest: it takes more than {} bytes", manifest_bytes_max));
  }
  out += "],\n";
  return seal_json(std::move(out));
}

Result<Manifest> parse_manifest(std::string_view text) {
  if (text.size() > manifest_bytes_max)
    return fail(Errc::corruption,
                fmt::format("{}: {} bytes are too many", manifest_name, text.size()));
  CKPT_TRY(auto reader, open_sealed_json(text, manifest_format, manifest_name));
  Manifest manifest;
  CKPT_TRY(manifest.writer, reader.string_member("writer"));
  CKPT_TRY(manifest.created_unix_seconds, reader.integer_member("created_unix_seconds"));
  CKPT_TRY(manifest.job, reader.string_member("job"));
  CKPT_TRY(manifest.run, digest_member(reader, "run"));
  CKPT_TRY(manifest.at.timeline, reader.integer_member("timeline"));
  CKPT_TRY(const auto step, reader.integer_member("step"));
  manifest.at.step = Step{step};
  CKPT_TRY(const auto world_size, reader.integer_member("world_size", UINT32_MAX));
  manifest.world_size = static_cast<std::uint32_t>(world_size);
  CKPT_CHECK(reader.member("topology"));
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(manifest.members, digest_member(reader, "members"));
  CKPT_CHECK(reader.array_member("nodes", [&]() -> Status {
    CKPT_TRY(auto node, reader.string());
    manifest.nodes.push_back(std::move(node));
    return {};
  }));
  CKPT_CHECK(reader.end_object());
  CKPT_CHECK(reader.array_member("shards", [&]() -> Status {
    CKPT_TRY(auto shard, read_shard(reader, manifest));
    manifest.shards.push_back(std::move(shard));
    return {};
  }));
  CKPT_CHECK(finish_sealed_json(reader));
  if (const auto problem = problem_of(manifest); !problem.empty())
    return fail(Errc::corruption, fmt::format("{}: {}", manifest_name, problem));
  return manifest;
}

Result<ShardRecord> record_from(const Manifest& manifest, std::uint32_t rank) {
  if (rank >= manifest.shards.size())
    return fail(Errc::not_found,
                fmt::format("rank {} of a checkpoint of {} ranks", rank, manifest.shards.size()));
  return manifest.shards[rank].record;
}

}  // namespace ckpt::format
