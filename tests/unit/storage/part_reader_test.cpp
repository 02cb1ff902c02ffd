// Goal:   a reader of a few names reads the front of a part and the blocks of these names alone,
//         and believes none of them without its digest. Parts of a tensor are found by its name.
// Method: a part of thousands of tensors; the reads are counted in the log of the disk; then a bit
//         turns in the front, in a block that is read and in one that is not.
#include "storage/part_reader.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

constexpr int count = 3000;
const std::string directory = "/scratch/step";
const std::string path = directory + "/rank-00000.part";

std::string name_of(int tensor) {
  return "model.layers." + std::to_string(10'000 + tensor) + ".w";
}

std::vector<format::TensorSpec> many_tensors() {
  std::vector<format::TensorSpec> specs(count);
  for (int tensor = 0; tensor < count; ++tensor) {
    specs[tensor].name = name_of(tensor);
    specs[tensor].shape = {tensor % 9};
    specs[tensor].piece = Piece{{100}, {static_cast<std::uint64_t>(tensor) % 90}, {}, {}, 0};
  }
  return specs;
}

// Parts of one tensor, which are named after their place.
std::vector<format::TensorSpec> many_parts() {
  std::vector<format::TensorSpec> specs(count);
  for (std::uint64_t part = 0; part < count; ++part) {
    specs[part].name = "w[" + std::to_string(part) + ":" + std::to_string(part + 1) + "]";
    specs[part].shape = {1};
    specs[part].piece = Piece{{count}, {part}, {}, {}, 0};
  }
  return specs;
}

class LargePart : public StorageFixture {
 public:
  explicit LargePart(const std::vector<format::TensorSpec>& specs = many_tensors()) {
    format::ShardRecord& record = part.record;
    record.job = "job";
    record.run = test_run;
    record.id.at = step_id(7);
    record.layout = format::make_layout(specs, 0, 0).value();
    record.bytes = record.layout.slot_bytes;
    record.chunk_bytes = 4096;
    record.chunk_crcs.assign(record.bytes / 4096, 1);
    part.member_crcs = {2};
    const auto bytes = format::encode(part);
    format::PartSeal seal;
    seal.bytes = bytes.size();
    seal.front_bytes = format::part_front_bytes(bytes).value();
    const auto front_bytes = std::span(bytes).first(seal.front_bytes);
    seal.front_digest = digest_of(front_bytes);
    front = format::decode_part_front(front_bytes).value();
    format::Manifest made;
    made.job = record.job;
    made.run = record.run;
    made.at = record.id.at;
    made.shards.push_back(format::entry_of(front, seal));
    manifest = std::make_shared<const format::Manifest>(std::move(made));
    disk.put_directory(directory);
    disk.put(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  Result<storage::PartExcerpt> find(std::vector<std::string> names) {
    disk.clear_log();
    return run(storage::find_tensors(files, directory, manifest, 0, std::move(names)));
  }
  std::size_t reads() const {
    return static_cast<std::size_t>(std::ranges::count(disk.log(), "read " + path));
  }

  format::ShardPart part;
  format::PartFront front;
  std::shared_ptr<const format::Manifest> manifest;
};

}  // namespace

TEST_CASE_METHOD(LargePart, "part reader: names are found by few reads", "[unit][storage]") {
  REQUIRE(front.blocks.size() > 5);
  for (const int tensor : {0, 1, 1234, count - 1}) {
    const auto found = find({name_of(tensor)});
    REQUIRE(found);
    REQUIRE(found->entries.size() == 1);
    const format::PartEntry& entry = found->entries[0];
    CHECK(entry.tensor.name == name_of(tensor));
    CHECK(entry.tensor == part.record.layout.tensors.at(entry.place));
    CHECK(reads() == 2);
  }
  const auto two = find({name_of(count - 1), "no such name", name_of(0), "zzz"});
  REQUIRE(two);
  REQUIRE(two->entries.size() == 2);
  CHECK(two->entries[0].tensor.name == name_of(0));
  CHECK(reads() == 3);
  std::vector<std::string> all;
  for (int tensor = count; tensor-- > 0;) all.push_back(name_of(tensor));
  CHECK(find(all)->entries.size() == count);
  CHECK(reads() == 2);
  CHECK(find({})->entries.empty());
  CHECK(find({"a name before all others"})->entries.empty());
  CHECK(reads() == 1);
}

TEST_CASE("part reader: parts of a tensor are found in all blocks by its name", "[unit][storage]") {
  LargePart large(many_parts());
  REQUIRE(large.front.blocks.size() > 5);
  const auto all = large.find({"w"});
  REQUIRE(all);
  CHECK(all->entries.size() == count);
  CHECK(large.reads() == 2);
  const auto one = large.find({"w[7:8]"});
  REQUIRE(one);
  CHECK(one->entries.size() == 1);
  for (const std::string other : {"v", "ww", "w[7:9]"}) CHECK(large.find({other})->entries.empty());
}

TEST_CASE_METHOD(LargePart, "part reader: only what is sealed is believed", "[unit][storage]") {
  const auto is_refused = [&] {
    const auto found = find({name_of(0)});
    if (!found) {
      CHECK(found.error().code() == Errc::corruption);
      CHECK(found.error().message().find("rank-00000.part") != std::string::npos);
    }
    return !found;
  };
  const auto refused_with_flip_at = [&](std::uint64_t at) {
    disk.flip(path, at, 1);
    const bool refused = is_refused();
    disk.flip(path, at, 1);
    return refused;
  };
  REQUIRE_FALSE(is_refused());
  CHECK(refused_with_flip_at(0));
  CHECK(refused_with_flip_at(front.front_bytes - 1));
  CHECK(refused_with_flip_at(front.blocks[0].offset));
  CHECK(refused_with_flip_at(front.blocks[1].offset - 1));
  CHECK_FALSE(refused_with_flip_at(front.blocks[1].offset));
  disk.resize(path, front.front_bytes - 1);
  CHECK(is_refused());
  disk.erase(path);
  CHECK(is_refused());
  CHECK(run(storage::find_tensors(files, directory, manifest, 1, {})).error().code() ==
        Errc::not_found);
}

// All that the manifest repeats of it is right, and so is its own checksum.
TEST_CASE_METHOD(LargePart, "part reader: a front that is not the sealed one is refused",
                 "[unit][storage]") {
  format::PartFront other = front;
  ++other.record.chunk_crcs[0];
  auto bytes = format::encode(part);
  const auto forged = format::encode(other);
  REQUIRE(forged.size() == front.front_bytes);
  std::ranges::copy(forged, bytes.begin());
  disk.put(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto found = find({name_of(0)});
  REQUIRE_FALSE(found);
  CHECK(found.error().code() == Errc::corruption);
}

}  // namespace ckpt::test
