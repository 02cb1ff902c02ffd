#include "cli/import_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/assert.hpp"
#include "cli/item_forms.hpp"
#include "format/safetensors_header.hpp"
#include "storage/catalog.hpp"
#include "storage/put_step.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::cli {

namespace {

using format::Extent;

// The Slot that a trainer of these tensors would fill, of which one Chunk at a time exists.
struct Image {
  std::shared_ptr<const ImportSource> source;
  std::shared_ptr<const format::ShardRecord> record;  // Without checksums of Chunks.
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
  format::ShardRecord record;
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
  CKPT_TRY(image.header, format::render_header(
                             record.layout, {order.job, to_hex(run), at.timeline, at.step, 0, 1}));
  for (const format::TensorPlace& place : record.layout.tensors) {
    if (!place.alias_of.empty() || place.extent.bytes == 0) continue;
    const std::size_t tensor = index_of.at(place.name);
    CKPT_ASSERT(image.source->tensors[tensor].bytes.bytes == place.extent.bytes);
    image.placements.push_back({place.extent, tensor});
  }
  std::ranges::sort(image.placements, {}, [](const auto& placed) { return placed.slot.offset; });
  image.record = std::make_shared<const format::ShardRecord>(std::move(record));
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
    copy(image.record->blobs.front().offset, std::as_bytes(std::span(image.items)));
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

Task<void> read_next(const Image& image, const ImportOrder& order, Extent chunk,
                     std::span<std::byte> target) {
  if (order.is_cancelled && order.is_cancelled())
    co_return fail(Errc::cancelled, "import: it was interrupted");
  Status read = co_await read_chunk(image, chunk, target);
  co_return read;
}

Task<storage::ShardStream> stream_of(const Image& image, const ImportOrder& order) {
  storage::ShardStream shard;
  shard.record = image.record;
  shard.read = [&](Extent chunk, std::span<std::byte> target) {
    return read_next(image, order, chunk, target);
  };
  co_return shard;
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
  storage::StepToPut step;
  step.publish.job = order.job;
  step.publish.run = marker.run;
  step.publish.at = {timeline, order.step};
  step.publish.nodes = {"ckpt import"};
  step.attempt = order.attempt;
  step.discarded = "its import failed";
  CKPT_CO_TRY(const Image image, make_image(std::move(source), marker.run, step.publish.at, order));
  step.shard = [&](std::uint32_t) { return stream_of(image, order); };
  step.hooks.verified = order.written;
  auto published = co_await storage::put_step(site, std::move(step));
  co_return published;
}

}  // namespace ckpt::cli
