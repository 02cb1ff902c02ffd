// NumberedScene: a checkpoint on a disk in memory whose tensors' elements carry their own numbers.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include "format/piece.hpp"
#include "format/safetensors_header.hpp"
#include "gather/piece_reader.hpp"
#include "gather/stored_shards.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::gather {

using Shape = std::vector<std::uint64_t>;

struct SavedPiece {
  std::string name;
  Shape shape;  // The global tensor's.
  Region region;
  std::vector<std::uint8_t> order;
  std::uint32_t salt = 0;  // Added to the numbers of its elements.
};

// The numbers of a region's elements as they lie in memory.
inline std::vector<std::uint32_t> numbers_of(const SavedPiece& piece) {
  std::vector<std::uint32_t> numbers(plan::count_of(piece.region));
  const plan::Addresses there = plan::addresses_of(piece.region, piece.shape, piece.order);
  const plan::Addresses global = plan::addresses_of(plan::whole(piece.shape), piece.shape, {});
  for (const Box& box : plan::boxes_of(piece.region, piece.shape)) {
    Shape index = box.offset;
    for (std::uint64_t left = plan::count_of(box.shape); left > 0; --left) {
      numbers[there.of(index)] = static_cast<std::uint32_t>(global.of(index)) + piece.salt;
      for (std::size_t d = index.size(); d-- > 0;) {
        if (++index[d] < box.end(d)) break;
        index[d] = box.offset[d];
      }
    }
  }
  return numbers;
}

inline format::TensorSpec spec_of(const SavedPiece& piece) {
  format::TensorSpec spec;
  spec.name = piece.name;
  spec.dtype = DType::u32;
  Piece where;
  where.global_shape = piece.shape;
  where.order = piece.order;
  if (const auto* range = std::get_if<FlatRange>(&piece.region)) {
    where.flat_begin = range->begin;
    spec.shape = {static_cast<std::int64_t>(range->count)};
  } else {
    const Box& box = std::get<Box>(piece.region);
    where.offset = box.offset;
    spec.shape.assign(box.shape.begin(), box.shape.end());
    for (std::size_t d = 0; d < piece.order.size(); ++d)  // As it lies in memory.
      spec.shape[d] = static_cast<std::int64_t>(box.shape[piece.order[d]]);
  }
  spec.piece = format::normalized(where, spec.shape);
  return spec;
}

inline test::MadeShard make_shard(std::uint32_t rank, std::uint32_t world,
                                  const std::vector<SavedPiece>& pieces) {
  std::vector<format::TensorSpec> specs;
  for (const SavedPiece& piece : pieces) specs.push_back(spec_of(piece));
  auto layout = format::make_layout(specs, rank, 0);
  REQUIRE((layout ? "" : layout.error().message()) == "");
  auto record = std::make_shared<format::ShardRecord>();
  record->job = "job";
  record->run = test::test_run;
  record->id = {test::step_id(7), rank};
  record->world_size = world;
  record->layout = std::move(layout).value();
  record->model = format::fingerprint(record->layout);
  record->bytes = format::covered_bytes(record->layout, 0);
  record->chunk_bytes = page_bytes;
  auto slot = std::make_shared<std::vector<std::byte>>(record->layout.slot_bytes);
  const auto header = format::render_header(
      record->layout, {"job", to_hex(test::test_run), 1, Step{7}, rank, world});
  REQUIRE(header);
  std::memcpy(slot->data(), header->data(), header->size());
  for (const format::TensorPlace& place : record->layout.tensors) {
    const auto piece = std::ranges::find(pieces, place.name, &SavedPiece::name);
    const auto numbers = numbers_of(*piece);
    if (!numbers.empty())
      std::memcpy(slot->data() + place.extent.offset, numbers.data(), place.extent.bytes);
  }
  test::checksum_chunks(*record, *slot);
  return {record, slot};
}

class Scene : public test::StorageFixture {
 public:
  Scene() { open(); }
  void publish(const std::vector<std::vector<SavedPiece>>& by_rank) {
    std::vector<test::MadeShard> shards;
    const auto world = static_cast<std::uint32_t>(by_rank.size());
    for (std::uint32_t rank = 0; rank < world; ++rank)
      shards.push_back(make_shard(rank, world, by_rank[rank]));
    const auto published = run(test::save(site, shards, ++attempts));
    REQUIRE((published ? "" : published.error().message()) == "");
  }
  std::string step_path() { return site.at(catalog().checkpoints.back().name); }
  storage::OpenStep open_step() {
    auto opened = run(storage::OpenStep::in(site, catalog().checkpoints.back().name));
    REQUIRE((opened ? "" : opened.error().message()) == "");
    return std::move(*opened);
  }
  // The newest one; lives until the next call.
  StoredShards& source() {
    source_ = std::make_unique<StoredShards>(open_step());
    return *source_;
  }

  // Returns the numbers that arrived.
  Result<std::vector<std::uint32_t>> read(const SavedPiece& want, ReaderRank reader = {0, 1},
                                          std::vector<std::string> also = {}) {
    std::vector<std::uint32_t> target(plan::count_of(want.region), 0xffff'ffffU);
    WantedPiece wanted;
    wanted.want = {want.name, DType::u32, want.shape, want.region, want.order};
    wanted.target = std::as_writable_bytes(std::span(target));
    wanted.also = std::move(also);
    const storage::TransferHooks hooks;
    StoredShards source(open_step());
    CKPT_CHECK(run(read_pieces(source, reader, {{wanted}, {}}, hooks)));
    return target;
  }
  std::string error_of(const SavedPiece& want) {
    const auto read_all = read(want);
    return read_all ? "" : read_all.error().message();
  }

 private:
  std::unique_ptr<StoredShards> source_;
};

}  // namespace ckpt::gather
