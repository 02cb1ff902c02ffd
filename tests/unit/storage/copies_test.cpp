// Goal:   ranks whose declared copies differ are named, with the tensor; nothing else is, and a
//         difference keeps no step from being published.
// Method: shards with copies, parts, own tensors and blobs are noted in an attempt and published;
//         notes that are damaged, or of another turn, lie beside them.
#include "storage/copies.hpp"

#include <ckpt/checkpointer.hpp>

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::storage {

using test::step_id;
using test::StorageFixture;
using Groups = std::vector<std::vector<std::uint32_t>>;

namespace {

constexpr std::uint32_t ranks = 3;

format::TensorSpec spec(std::string name, std::optional<Piece> piece, std::int64_t length = 8) {
  return {std::move(name), DType::f32, {length}, "", "", std::move(piece)};
}

Piece copy_of(std::vector<std::uint64_t> shape, std::vector<std::uint64_t> offset) {
  Piece piece;
  piece.global_shape = std::move(shape);
  piece.offset = std::move(offset);
  piece.copy = 1;
  return piece;
}

// All bytes of the Slot are those of `fill`; then tensors by name get their own.
struct Maker {
  std::vector<format::TensorSpec> tensors = {
      spec("norm", copy_of({8}, {0})), spec("router", copy_of({32}, {8})),
      spec("own", std::nullopt), spec("tied", copy_of({8}, {0}))};
  std::byte fill{7};
  std::map<std::string, std::byte> bytes;
  std::string common = "step 7";

  test::MadeShard make(std::uint32_t rank) const {
    std::vector<format::TensorSpec> specs = tensors;
    for (auto& tensor : specs)
      if (tensor.name == "tied") tensor.alias_of = "norm";
    auto record = std::make_shared<format::ShardRecord>();
    record->job = "job";
    record->run = test::test_run;
    record->id = {step_id(7), rank};
    record->world_size = ranks;
    record->layout = format::make_layout(specs, rank, 200).value();
    record->model = format::fingerprint(record->layout);
    record->blob_bytes = 200;
    record->bytes = format::covered_bytes(record->layout, record->blob_bytes);
    record->chunk_bytes = page_bytes;
    auto slot = std::make_shared<std::vector<std::byte>>(record->layout.slot_bytes);
    for (const auto& tensor : record->layout.tensors) {
      const auto given = bytes.find(tensor.name);
      if (!tensor.alias_of.empty()) continue;
      std::fill_n(slot->begin() + static_cast<std::ptrdiff_t>(tensor.extent.offset),
                  tensor.extent.bytes, given == bytes.end() ? fill : given->second);
    }
    const format::Extent blob{record->layout.members.back().extent.offset, common.size()};
    record->blobs = {blob, {blob.end(), 4}};
    record->blob_names = {std::string(common_blob_prefix) + "args", "rng"};
    std::memcpy(slot->data() + blob.offset, common.data(), common.size());
    (*slot)[blob.end()] = static_cast<std::byte>(rank);
    test::checksum_chunks(*record, *slot);
    return {record, slot};
  }
};

struct CopiesFixture : StorageFixture {
  CopiesFixture() {
    open();
    order.at = step_id(7);
    order.job = "job";
    order.run = test::test_run;
    order.world_size = ranks;
    order.work_name = run(make_work_directory(site, order.at, 1)).value();
  }
  void write(std::uint32_t rank, std::uint32_t turn = 0) {
    const auto shard = maker.make(rank);
    ShardToWrite source = test::source_of(shard);
    source.turn = turn;
    if (!divided.empty())
      source.copies = std::make_shared<const std::vector<CopyNote>>(
          std::vector<CopyNote>{{"matrix", {4, 4}, divided[rank]}, {"matrix", {5, rank}, rank}});
    const auto written = run(write_shard(files, source, directory(), TransferHooks()));
    REQUIRE(written);
    REQUIRE(run(note_copies(files, source, directory(), nullptr)));
    order.digests.resize(ranks);
    order.digests[rank] = written->digest;
  }
  PublishOutcome publish_it() {
    auto published = run(publish(site, order));
    REQUIRE((published ? "" : published.error().message()) == "");
    for (const std::string& path : disk.tree()) REQUIRE(path.find(".copies") == std::string::npos);
    REQUIRE(catalog().checkpoints.size() == 1);
    return *published;
  }
  std::string directory() const { return site.at(order.work_name); }

  PublishOrder order;
  Maker maker;
  std::vector<Crc32> divided;  // By rank, what its trainer found of a tensor that ranks divide.
};

}  // namespace

TEST_CASE_METHOD(CopiesFixture, "copies: equal ones are no difference, whatever is a rank's own",
                 "[unit][storage]") {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    maker.bytes["own"] = static_cast<std::byte>(rank);
    write(rank);
  }
  const PublishOutcome published = publish_it();
  REQUIRE(published.copies.differences.empty());
  REQUIRE_FALSE(published.copies.has_left_out);
}

TEST_CASE_METHOD(CopiesFixture, "copies: a difference names the tensor and the ranks",
                 "[unit][storage]") {
  write(0);
  maker.bytes["router"] = std::byte{9};
  write(1);
  maker.bytes.clear();
  maker.common = "step 8";
  write(2);
  const auto differences = publish_it().copies.differences;
  REQUIRE(differences.size() == 2);
  REQUIRE(differences[0] == CopyDifference{"libckpt.common/args", Groups{{0, 1}, {2}}});
  REQUIRE(differences[1] == CopyDifference{"router", Groups{{0, 2}, {1}}});
  REQUIRE(describe(differences[1]) == "\"router\" differs: ranks 0, 2; rank 1");
}

TEST_CASE_METHOD(CopiesFixture, "copies: what trainers found of divided ones is compared, too",
                 "[unit][storage]") {
  divided = {7, 8, 7};
  const bool has_others = GENERATE(true, false);
  if (!has_others) maker.tensors = {spec("own", std::nullopt)};
  if (!has_others) maker.common.clear();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) write(rank);
  const auto differences = publish_it().copies.differences;
  REQUIRE(differences.size() == 1);  // A note of one rank alone is not compared.
  REQUIRE(differences[0] == CopyDifference{"matrix", Groups{{0, 2}, {1}}});
}

TEST_CASE_METHOD(CopiesFixture, "copies: other elements of one tensor are not compared",
                 "[unit][storage]") {
  write(0);
  maker.tensors[1].piece->offset = {16};
  maker.bytes["router"] = std::byte{9};
  write(1);
  write(2);
  REQUIRE(publish_it().copies.differences.empty());
}

TEST_CASE_METHOD(CopiesFixture, "copies: the note of the turn that counts is compared",
                 "[unit][storage]") {
  write(0);
  write(2);
  maker.bytes["norm"] = std::byte{9};
  write(1);
  maker.bytes.clear();
  write(1, 2);
  order.turns = {0, 2, 0};
  REQUIRE(publish_it().copies.differences.empty());
}

TEST_CASE_METHOD(CopiesFixture, "copies: a damaged note costs the comparison and not the step",
                 "[unit][storage]") {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    maker.bytes["norm"] = static_cast<std::byte>(rank);
    write(rank);
  }
  const std::string path = os::join(directory(), "rank-00001.copies");
  std::string note = disk.content(path);
  note.back() = static_cast<char>(note.back() ^ 1);
  disk.put(path, note);
  REQUIRE(publish_it().copies.differences.empty());
}

TEST_CASE_METHOD(CopiesFixture, "copies: a rank without declared copies leaves no note",
                 "[unit][storage]") {
  maker.tensors = {spec("own", std::nullopt)};
  maker.common.clear();
  write(0);
  REQUIRE_FALSE(disk.exists(os::join(directory(), "rank-00000.copies")));
}

TEST_CASE("copies: the smallest are compared, and of one size all or none", "[unit][storage]") {
  Maker maker;
  constexpr std::int64_t half = compared_bytes_max / 2 / 4;
  format::ShardRecord record;
  std::vector<format::TensorSpec> tensors = {spec("small", copy_of({8}, {0}))};
  for (const char* name : {"a", "b"})
    tensors.push_back(spec(name, copy_of({static_cast<std::uint64_t>(half)}, {0}), half));
  record.layout = format::make_layout(tensors, 0, 0).value();
  auto copies = declared_copies(record);
  REQUIRE(copies.size() == 1);
  REQUIRE(copies.front().name == "small");
  tensors.erase(tensors.begin());
  record.layout = format::make_layout(tensors, 0, 0).value();
  REQUIRE(declared_copies(record).size() == 2);
}

TEST_CASE("copies: equal notes are read once, and too many entries are left out",
          "[unit][storage]") {
  CopyComparison comparison;
  const Digest first{1, 1}, second{2, 2};
  REQUIRE_FALSE(comparison.add_rank(0, first));
  comparison.add_notes(first, {{"a", {5, 5}, 1}});
  for (std::uint32_t rank = 1; rank < 20; ++rank) REQUIRE(comparison.add_rank(rank, first));
  REQUIRE_FALSE(comparison.add_rank(20, second));
  comparison.add_notes(second, {{"a", {5, 5}, 2}});
  REQUIRE(describe(comparison.differences().at(0)) ==
          "\"a\" differs: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more; rank 20");
  REQUIRE_FALSE(comparison.has_left_out());
  REQUIRE_FALSE(comparison.add_rank(21, Digest{3, 3}));
  comparison.add_notes(Digest{3, 3}, std::vector<CopyNote>(compared_entries_max - 1));
  REQUIRE(comparison.has_left_out());
  REQUIRE(comparison.differences().size() == 1);
}

}  // namespace ckpt::storage
