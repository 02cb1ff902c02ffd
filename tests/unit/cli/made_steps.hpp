// MadeSteps: checkpoints of chosen tensors on a disk in memory, for the commands that read them.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/stored_step.hpp"
#include "format/piece.hpp"
#include "format/safetensors_header.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::cli {

struct MadeTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  // Unless it is an alias.
  std::optional<Piece> piece;
  std::string alias_of;
};

// The elements from `first` on, each one more than the one before.
template <class Number>
MadeTensor made(std::string name, DType dtype, std::vector<std::int64_t> shape, Number first) {
  MadeTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  std::size_t count = 1;
  for (const std::int64_t dimension : tensor.shape) count *= static_cast<std::size_t>(dimension);
  std::vector<Number> numbers(count);
  for (std::size_t index = 0; index < count; ++index)
    numbers[index] = static_cast<Number>(first + static_cast<Number>(index));
  const auto bytes = std::as_bytes(std::span(numbers));
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}
inline MadeTensor floats(std::string name, std::vector<std::int64_t> shape, float first) {
  return made<float>(std::move(name), DType::f32, std::move(shape), first);
}
// Rows of a tensor of this shape, from `row` on; they are numbered as the whole one's would be.
inline MadeTensor rows(std::string name, std::vector<std::uint64_t> whole, std::uint64_t row,
                       std::uint64_t count, float first) {
  const std::uint64_t width = whole.at(1);
  MadeTensor tensor =
      floats(std::move(name), {static_cast<std::int64_t>(count), static_cast<std::int64_t>(width)},
             first + static_cast<float>(row * width));
  Piece piece;
  piece.global_shape = std::move(whole);
  piece.offset = {row, 0};
  tensor.piece = piece;
  return tensor;
}
inline MadeTensor tied(std::string name, const MadeTensor& to) {
  MadeTensor tensor = to;
  tensor.name = std::move(name);
  tensor.alias_of = to.name;
  return tensor;
}

struct MadeRank {
  std::vector<MadeTensor> tensors;
  std::map<std::string, std::string> blobs;
};

inline test::MadeShard shard_of(std::uint32_t rank, std::uint32_t world, std::uint64_t step,
                                const MadeRank& made_rank) {
  std::vector<format::TensorSpec> specs;
  for (const MadeTensor& tensor : made_rank.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.alias_of, "",
                     format::normalized(tensor.piece, tensor.shape)});
  std::uint64_t blob_bytes = 0;
  for (const auto& [name, content] : made_rank.blobs) blob_bytes += content.size();
  auto layout = format::make_layout(specs, rank, blob_bytes);
  REQUIRE((layout ? "" : layout.error().message()) == "");
  auto record = std::make_shared<format::ShardRecord>();
  record->job = "job";
  record->run = test::test_run;
  record->id = {test::step_id(step), rank};
  record->world_size = world;
  record->layout = std::move(layout).value();
  record->model = format::fingerprint(record->layout);
  record->blob_bytes = blob_bytes;
  record->bytes = format::covered_bytes(record->layout, blob_bytes);
  record->chunk_bytes = page_bytes;
  auto slot = std::make_shared<std::vector<std::byte>>(record->layout.slot_bytes);
  const auto header = format::render_header(
      record->layout, {"job", to_hex(test::test_run), 1, Step{step}, rank, world});
  REQUIRE(header);
  std::memcpy(slot->data(), header->data(), header->size());
  for (const format::TensorPlace& place : record->layout.tensors) {
    const auto tensor = std::ranges::find(made_rank.tensors, place.name, &MadeTensor::name);
    if (!place.alias_of.empty() || tensor->bytes.empty()) continue;
    std::memcpy(slot->data() + place.extent.offset, tensor->bytes.data(), tensor->bytes.size());
  }
  if (blob_bytes > 0) {
    std::uint64_t at = record->layout.members.back().extent.offset;
    for (const auto& [name, content] : made_rank.blobs) {
      record->blob_names.push_back(name);
      record->blobs.push_back({at, content.size()});
      if (!content.empty()) std::memcpy(slot->data() + at, content.data(), content.size());
      at += content.size();
    }
  }
  test::checksum_chunks(*record, *slot);
  return {record, slot};
}

class MadeSteps : public test::StorageFixture {
 public:
  MadeSteps() { open(); }

  std::optional<storage::Compression> compression;  // For the steps that are published.

  // Returns the path of the checkpoint.
  std::string publish(std::uint64_t step, const std::vector<MadeRank>& ranks) {
    std::vector<test::MadeShard> shards;
    const auto world = static_cast<std::uint32_t>(ranks.size());
    for (std::uint32_t rank = 0; rank < world; ++rank)
      shards.push_back(shard_of(rank, world, step, ranks[rank]));
    const auto published = run(test::save(site, shards, ++attempts, compression));
    REQUIRE((published ? "" : published.error().message()) == "");
    return "/scratch/job/" + storage::step_directory_name(Step{step});
  }
  std::shared_ptr<StoredStep> open_step(const std::string& path) {
    auto opened = run(open_stored_step(storage::Site(files, clock, path)));
    REQUIRE((opened ? "" : opened.error().message()) == "");
    return *opened;
  }
};

}  // namespace ckpt::cli
