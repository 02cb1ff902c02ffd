#include "cli/import_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "cli/item_forms.hpp"
#include "format/safetensors_header.hpp"
#include "format/shard_part.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/chunk_map.hpp"
#include "storage/page_buffer.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::cli {

namespace {

using format::Extent;

// The Slot that a trainer of these tensors would fill, of which one Chunk at a time exists.
struct Image {
  std::shared_ptr<const ImportSource> source;
  format::ShardPart part;
  std::vector<std::byte> header;
  std::string items;  // The bytes of the only blob.
  struct Placement {
    Extent slot;
    std::size_t tensor = 0;  // Index into the source's.
  };
  std::vector<Placement> placements;  // Those with bytes, as they lie in the Slot.
};

// Empty: the prefix names no item.
std::string items_of(const ImportSource& source, const std::string& prefix) {
  const bool is_item = prefix.size() > 1 && prefix.find('.') == prefix.size() - 1;
  if (!is_item) return {};
  std::vector<NamedForm> forms;
  for (const ImportTensor& tensor : source.tensors)
    forms.push_back({tensor.spec.name.substr(prefix.size()), tensor.spec.name, tensor.spec.dtype,
                     tensor.spec.shape});
  return structure_of(prefix.substr(0, prefix.size() - 1), forms);
}

Result<Image> make_image(std::shared_ptr<const ImportSource> source, format::RunId run,
                         format::StepId at, const ImportOrder& order) {
  Image image;
  image.source = std::move(source);
  std::vector<format::TensorSpec> specs;
  std::map<std::string_view, std::size_t> index_of;
  for (const ImportTensor& tensor : image.source->tensors) {
    index_of.emplace(tensor.spec.name, specs.size());
    specs.push_back(tensor.spec);
  }
  format::ShardRecord& record = image.part.record;
  image.items = items_of(*image.source, order.prefix);
  record.blob_bytes = image.items.size();
  CKPT_TRY(record.layout, format::make_layout(specs, 0, record.blob_bytes));
  if (!image.items.empty()) {
    record.blobs = {{record.layout.members.back().extent.offset, record.blob_bytes}};
    record.blob_names = {std::string(items_blob)};
  }
  record.job = order.job;
  record.run = run;
  record.id = {at, 0};
  record.model = format::fingerprint(record.layout);
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = order.chunk_bytes;
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  CKPT_TRY(image.header, format::render_header(
                             record.layout, {order.job, to_hex(run), at.timeline, at.step, 0, 1}));
  for (const format::TensorPlace& place : record.layout.tensors) {
    if (!place.alias_of.empty() || place.extent.bytes == 0) continue;
    const std::size_t tensor = index_of.at(place.name);
    CKPT_ASSERT(image.source->tensors[tensor].bytes.bytes == place.extent.bytes);
    image.placements.push_back({place.extent, tensor});
  }
  std::ranges::sort(image.placements, {}, [](const auto& placed) { return placed.slot.offset; });
  return image;
}

// `target` has the Chunk's size.
Task<void> read_chunk(const Image& image, Extent chunk, std::span<std::byte> target) {
  std::ranges::fill(target, std::byte{0});
  const auto copy = [&](std::uint64_t at, std::span<const std::byte> bytes) {
    const std::uint64_t begin = std::max(at, chunk.offset);
    const std::uint64_t end = std::min(at + bytes.size(), chunk.end());
    if (begin < end)
      std::memcpy(target.data() + (begin - chunk.offset), bytes.data() + (begin - at), end - begin);
  };
  copy(0, image.header);
  if (!image.items.empty())
    copy(image.part.record.blobs.front().offset, std::as_bytes(std::span(image.items)));
  auto placed = std::ranges::partition_point(image.placements, [&](const Image::Placement& each) {
    return each.slot.end() <= chunk.offset;
  });
  for (; placed != image.placements.end() && placed->slot.offset < chunk.end(); ++placed) {
    const std::uint64_t begin = std::max(placed->slot.offset, chunk.offset);
    const std::uint64_t end = std::min(placed->slot.end(), chunk.end());
    const ImportTensor& tensor = image.source->tensors[placed->tensor];
    const auto part = target.subspan(begin - chunk.offset, end - begin);
    const std::uint64_t offset = tensor.bytes.offset + (begin - placed->slot.offset);
    const Status read = co_await image.source->files[tensor.file]->read_at(offset, part);
    if (!read)
      co_return fail(Error(read.error())
                         .context(fmt::format("import {}: tensor \"{}\"",
                                              image.source->paths[tensor.file], tensor.spec.name)));
  }
  co_return Status();
}

Task<void> write_files(storage::Site site, std::string directory, Image& image,
                       const ImportOrder& order) {
  format::ShardRecord& record = image.part.record;
  const std::vector<Extent> members = format::member_extents(record);
  std::vector<std::unique_ptr<os::File>> opened;
  for (std::size_t index = 0; index < members.size(); ++index) {
    const std::string path = os::join(directory, record.layout.members[index].file_name);
    CKPT_CO_TRY(auto file, co_await site.files().create(path, os::Caching::direct));
    CKPT_CO_CHECK(co_await file->allocate(members[index].bytes));
    opened.push_back(std::move(file));
  }
  image.part.member_crcs.assign(members.size(), 0);
  storage::PageBuffer memory(std::min(record.bytes, record.chunk_bytes));
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
    if (order.is_cancelled && order.is_cancelled())
      co_return fail(Errc::cancelled, "import: it was interrupted");
    const Extent chunk = record.chunk(index);
    const std::span<std::byte> bytes = memory.first(chunk.bytes);
    CKPT_CO_CHECK(co_await read_chunk(image, chunk, bytes));
    record.chunk_crcs[index] = crc32(bytes);
    const auto segments = storage::segments_of(chunk, members);
    for (const storage::FileSegment& segment : segments) {
      if (!segment.member) continue;
      const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
      Crc32& crc = image.part.member_crcs[*segment.member];
      crc = crc32(part, crc);
      CKPT_CO_CHECK(co_await opened[*segment.member]->write_at(segment.file_offset, part));
    }
    if (order.written) order.written(chunk.bytes);
  }
  for (const auto& file : opened) {
    CKPT_CO_CHECK(co_await file->sync_data());
    CKPT_CO_CHECK(co_await file->close());
  }
  const std::string path = os::join(directory, format::part_name(0));
  Status written = co_await site.files().write_small(path, format::encode(image.part));
  co_return written;
}

// Returns the timeline that the checkpoint is of.
Task<std::uint64_t> prepare(storage::Site site, format::RunId run, const ImportOrder& order) {
  storage::CatalogOptions options;
  options.make_durable = false;
  CKPT_CO_TRY(const auto catalog, co_await storage::read_catalog(site, options));
  if (!catalog.checkpoints.empty() || !catalog.rejected.empty()) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("import into {}: it has {} already; import into a new directory",
                               site.directory(),
                               catalog.checkpoints.empty() ? catalog.rejected.front().name
                                                           : catalog.checkpoints.front().name));
  }
  CKPT_CO_TRY(auto timelines, co_await storage::load_timelines(site, run));
  if (timelines.history.empty()) {
    timelines.history = {{1, {}}};
    CKPT_CO_CHECK(co_await storage::store_timelines(site, timelines, order.attempt));
  }
  co_return timelines.history.back().timeline;
}

}  // namespace

Task<storage::PublishOutcome> write_import(storage::Site site,
                                           std::shared_ptr<const ImportSource> source,
                                           ImportOrder order) {
  storage::RunOrder run;
  run.job = order.job;
  run.fresh_run = order.fresh_run;
  run.attempt = order.attempt;
  CKPT_CO_TRY(const auto marker, co_await storage::open_run_directory(site, std::move(run)));
  CKPT_CO_TRY(const std::uint64_t timeline, co_await prepare(site, marker.run, order));
  storage::PublishOrder publish;
  publish.job = order.job;
  publish.run = marker.run;
  publish.at = {timeline, order.step};
  publish.nodes = {"ckpt import"};
  CKPT_CO_TRY(Image image, make_image(std::move(source), marker.run, publish.at, order));
  CKPT_CO_TRY(publish.work_name,
              co_await storage::make_work_directory(site, publish.at, order.attempt));
  const std::string work_name = publish.work_name;
  Status written = co_await write_files(site, storage::attempt_path(site, work_name), image, order);
  Result<storage::PublishOutcome> published = storage::PublishOutcome();
  if (written) {
    publish.digests = {format::digest_of(image.part.record)};
    auto done = co_await storage::publish(site, std::move(publish));
    published = std::move(done);
  } else {
    published = fail(std::move(written).error());
  }
  if (published) co_return published;
  const Status discarded =
      co_await storage::discard_work_directory(site, work_name, "its import failed");
  if (!discarded) log_warning("{} is left behind: {}", work_name, discarded.error().message());
  co_return published;
}

}  // namespace ckpt::cli
