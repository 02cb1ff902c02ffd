#include "format/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ckpt/version.hpp>

#include "base/counted.hpp"
#include "format/manifest_v1.hpp"
#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view manifest_format = "libckpt-manifest";
constexpr std::uint64_t version_before_metrics = 2;
constexpr std::uint64_t version_with_metrics = 3;
constexpr std::uint64_t version_with_folders = 4;  // And with metrics, which may be none.
constexpr std::uint64_t version_with_packed = 5;   // And with folders, which may be empty.
static_assert(version_with_packed == format_version);

// Returns an empty text if the shards are those of all ranks.
std::string problem_of(const Manifest& manifest) {
  if (manifest.shards.size() != manifest.world_size || manifest.shards.empty())
    return fmt::format("{} of {}", counted(manifest.shards.size(), "shard"),
                       counted(manifest.world_size, "rank"));
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank)
    if (manifest.shards[rank].rank != rank)
      return fmt::format("the shard of rank {} is missing or there twice", rank);
  return {};
}

template <class T>
void field(std::string& out, std::string_view key, const T& value) {
  if (out.back() != '{') out += ",";
  append_json(out, key);
  out += ":";
  append_json(out, value);
}

constexpr std::string_view with_zstd = "zstd";
constexpr std::string_view without_compression = "none";

void append_file(std::string& out, const StoredFile& file, bool may_be_packed) {
  out += "{";
  field(out, "file", std::string_view(file.name));
  field(out, "kind", name_of(file.kind));
  if (!file.archive.empty()) field(out, "archive", std::string_view(file.archive));
  field(out, "bytes", file.bytes);
  field(out, "crc32", std::uint64_t{file.crc});
  if (may_be_packed) field(out, "compression", file.table ? with_zstd : without_compression);
  if (file.table) {
    field(out, "table_bytes", file.table->bytes);
    field(out, "table_digest", file.table->digest);
  }
  out += "}";
}

bool has_packed_files(const Manifest& manifest) {
  return std::ranges::any_of(manifest.shards, [](const ManifestShard& shard) {
    return std::ranges::any_of(shard.files,
                               [](const StoredFile& file) { return file.table.has_value(); });
  });
}

bool has_folders(const Manifest& manifest) {
  return std::ranges::any_of(manifest.shards,
                             [](const ManifestShard& shard) { return !shard.folder.empty(); });
}

// A path is made of it: at most two names, of our own letters, and none that begins with a dot.
bool is_folder(std::string_view folder) {
  constexpr std::size_t bytes_max = 100;
  if (folder.size() > bytes_max || std::ranges::count(folder, '/') > 1) return false;
  char before = '/';
  for (const char letter : folder) {
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
    const bool is_inner = letter == '.' || letter == '-' || letter == '/';
    if (!is_plain && (!is_inner || before == '/')) return false;
    before = letter;
  }
  return before != '/';  // Nor is it empty.
}

void append_shard(std::string& out, const ManifestShard& shard, std::uint64_t version) {
  out += "{";
  field(out, "rank", std::uint64_t{shard.rank});
  if (version >= version_with_folders) field(out, "folder", std::string_view(shard.folder));
  field(out, "slot_bytes", shard.slot_bytes);
  field(out, "record_digest", shard.record_digest);
  out += ",\"part\":{";
  field(out, "file", std::string_view(part_name(shard.rank)));
  field(out, "bytes", shard.part.bytes);
  field(out, "front_bytes", shard.part.front_bytes);
  field(out, "front_digest", shard.part.front_digest);
  out += "},\"members\":[";
  for (const StoredFile& file : shard.files) {
    if (&file != &shard.files.front()) out += ",";
    append_file(out, file, version >= version_with_packed);
  }
  out += "]}";
}

// Reads what a packed file has besides.
Status read_packed(JsonReader& reader, StoredFile& file) {
  CKPT_TRY(const auto compression, reader.string_member("compression"));
  if (compression != with_zstd && compression != without_compression)
    return fail(Errc::version_mismatch,
                fmt::format("{}: {} is compressed by \"{}\", which this program does not know",
                            manifest_name, file.name, compression));
  const bool is_packed = compression == with_zstd;
  if (is_packed != plain_name(file.name).has_value())
    return reader.problem("a file whose name does not fit its compression");
  if (!is_packed) return {};
  file.table.emplace();
  CKPT_TRY(file.table->bytes, reader.integer_member("table_bytes", file.bytes));
  CKPT_TRY(file.table->digest, digest_member(reader, "table_digest"));
  return {};
}

// The name of a plain file, or from the version on that has them that of a packed one.
bool is_file_name(std::string_view name, std::uint32_t rank, std::uint64_t version) {
  const auto plain = plain_name(name);
  if (plain && version < version_with_packed) return false;
  return is_member_name(plain.value_or(name), rank);
}

Result<StoredFile> read_file(JsonReader& reader, std::uint32_t rank, std::uint64_t version) {
  StoredFile file;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(file.name, reader.string_member("file"));
  if (!is_file_name(file.name, rank, version))
    return reader.problem("a file that is none of its rank");
  CKPT_TRY(const auto kind, reader.string_member("kind"));
  const auto known = kind_from(kind);
  if (!known) return reader.problem("a file of unknown kind");
  file.kind = *known;
  if (file.kind == MemberKind::torch) {
    CKPT_TRY(file.archive, reader.string_member("archive"));
    if (file.archive.empty()) return reader.problem("an archive without a name");
  }
  CKPT_TRY(file.bytes, reader.integer_member("bytes", slot_bytes_max));
  CKPT_TRY(const auto crc, reader.integer_member("crc32", UINT32_MAX));
  file.crc = static_cast<Crc32>(crc);
  if (version >= version_with_packed) CKPT_CHECK(read_packed(reader, file));
  CKPT_CHECK(reader.end_object());
  return file;
}

Status read_seal(JsonReader& reader, std::uint32_t rank, PartSeal& seal) {
  CKPT_CHECK(reader.member("part"));
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(const auto name, reader.string_member("file"));
  if (!is_part_name(name, rank)) return reader.problem("a part that is none of its rank");
  CKPT_TRY(seal.bytes, reader.integer_member("bytes", part_bytes_max));
  CKPT_TRY(seal.front_bytes, reader.integer_member("front_bytes", seal.bytes));
  CKPT_TRY(seal.front_digest, digest_member(reader, "front_digest"));
  return reader.end_object();
}

Result<ManifestShard> read_shard(JsonReader& reader, std::uint64_t version) {
  ManifestShard shard;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(const auto rank, reader.integer_member("rank", UINT32_MAX));
  shard.rank = static_cast<std::uint32_t>(rank);
  if (version >= version_with_folders) {
    CKPT_TRY(shard.folder, reader.string_member("folder"));
    const bool may_be_empty = version >= version_with_packed;
    if (!(shard.folder.empty() && may_be_empty) && !is_folder(shard.folder))
      return reader.problem("a folder that is none of ours");
  }
  CKPT_TRY(shard.slot_bytes, reader.integer_member("slot_bytes", slot_bytes_max));
  CKPT_TRY(shard.record_digest, digest_member(reader, "record_digest"));
  CKPT_CHECK(read_seal(reader, shard.rank, shard.part));
  CKPT_CHECK(reader.array_member("members", [&]() -> Status {
    if (shard.files.size() == members_max) return reader.problem("too many files");
    CKPT_TRY(auto file, read_file(reader, shard.rank, version));
    shard.files.push_back(std::move(file));
    return {};
  }));
  CKPT_CHECK(reader.end_object());
  return shard;
}

}  // namespace

ManifestShard entry_of(const PartFront& front, const PartSeal& seal) {
  ManifestShard shard;
  shard.rank = front.record.id.rank;
  shard.slot_bytes = front.record.layout.slot_bytes;
  shard.record_digest = front.record_digest;
  shard.part = seal;
  shard.files = front.files;
  return shard;
}

Result<std::string> render(const Manifest& manifest) {
  if (const auto problem = problem_of(manifest); !problem.empty())
    return fail(Errc::invalid_argument, "manifest: " + problem);
  // Programs that know neither packed files nor folders nor metrics read what has none of them.
  const std::uint64_t version = has_packed_files(manifest) ? version_with_packed
                                : has_folders(manifest)    ? version_with_folders
                                : manifest.metrics.empty() ? version_before_metrics
                                                           : version_with_metrics;
  std::string out = begin_sealed_json(manifest_format, version);
  const auto line = [&](std::string_view key, const auto& value) {
    append_json(out, key);
    out += ":";
    append_json(out, value);
    out += ",";
  };
  line("writer", std::string_view(manifest.writer));
  line("created_unix_seconds", manifest.created_unix_seconds);
  out += "\n";
  line("job", std::string_view(manifest.job));
  line("run", manifest.run);
  line("timeline", manifest.at.timeline);
  line("step", number(manifest.at.step));
  line("world_size", std::uint64_t{manifest.world_size});
  out += "\n\"topology\":{";
  line("members", manifest.members);
  out += "\"nodes\":[";
  for (const auto& node : manifest.nodes) {
    if (out.back() != '[') out += ",";
    append_json(out, node);
  }
  out += "]},\n";
  if (version != version_before_metrics) {
    line("metrics", manifest.metrics);
    out += "\n";
  }
  out += "\"shards\":[\n";
  for (const auto& shard : manifest.shards) {
    if (&shard != &manifest.shards.front()) out += ",\n";
    append_shard(out, shard, version);
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
  std::uint64_t version = 0;
  CKPT_TRY(auto reader,
           open_sealed_json(text, manifest_format, manifest_name, format_version, &version));
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
  if (version > version_before_metrics) {
    CKPT_CHECK(reader.member("metrics"));
    CKPT_TRY(manifest.metrics, read_metrics(reader));
  }
  CKPT_CHECK(reader.array_member("shards", [&]() -> Status {
    CKPT_TRY(auto shard, version == 1 ? read_shard_of_version_1(reader, manifest)
                                      : read_shard(reader, version));
    manifest.shards.push_back(std::move(shard));
    return {};
  }));
  CKPT_CHECK(finish_sealed_json(reader));
  if (const auto problem = problem_of(manifest); !problem.empty())
    return fail(Errc::corruption, fmt::format("{}: {}", manifest_name, problem));
  return manifest;
}

std::set<std::string> file_names(const Manifest& manifest) {
  std::set<std::string> names;
  for (const ManifestShard& shard : manifest.shards) {
    names.insert(part_name(shard.rank));
    for (const StoredFile& file : shard.files) names.insert(file.name);
  }
  return names;
}

Result<ManifestShard> shard_of(const Manifest& manifest, std::uint32_t rank) {
  if (rank >= manifest.shards.size())
    return fail(Errc::not_found, fmt::format("rank {} of a checkpoint of {}", rank,
                                             counted(manifest.shards.size(), "rank")));
  return manifest.shards[rank];
}

Status check_belongs(const Manifest& manifest, std::uint32_t rank, const ShardRecord& record) {
  const bool belongs = record.job == manifest.job && record.run == manifest.run &&
                       record.id == ShardId{manifest.at, rank} &&
                       record.world_size == manifest.world_size;
  if (belongs) return {};
  return fail(Errc::corruption,
              fmt::format("the part of rank {} is of another step, run or world size", rank));
}

}  // namespace ckpt::format
