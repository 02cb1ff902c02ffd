// Goal:   a compressed checkpoint gives back every byte, shows every damage, and is never taken for
//         a plain one.
// Method: steps of numbers, of noise and of both on a disk in memory: read whole and in parts,
//         verified, copied and removed; each byte of a file turned; files of a writer before.
#include "storage/copy.hpp"
#include "storage/packed_file.hpp"
#include "storage/shard_files.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

constexpr std::uint64_t chunk_bytes = 16 * page_bytes;
const std::string packed_file = "rank-00000.safetensors.ckz";

MadeShard make_numbers(format::StepId at, std::uint32_t rank = 0) {
  ShardWish wish;
  wish.run = test_run;
  wish.at = at;
  wish.rank = rank;
  wish.world_size = world_size;
  wish.tensor_bytes = 5 * chunk_bytes + 1000;
  wish.dtype = DType::bf16;
  wish.is_regular = rank == 0;  // The other one's bytes are noise.
  wish.chunk_bytes = chunk_bytes;
  return make_shard(wish);
}

class PackedScene : public StorageFixture {
 public:
  PackedScene() { open(); }

  Task<format::ShardFlushed> write(std::string directory, MadeShard shard, bool is_packed,
                                   std::uint32_t turn) {
    storage::ShardToWrite source = source_of(shard);
    source.turn = turn;
    if (is_packed) source.compression = storage::Compression{};
    const storage::TransferHooks hooks;
    auto written = co_await storage::write_shard(files, source, directory, hooks);
    co_return written;
  }
  storage::PublishOrder order_of(format::StepId at) {
    storage::PublishOrder order;
    order.job = "job";
    order.run = test_run;
    order.at = at;
    order.world_size = world_size;
    const auto name = run(storage::make_work_directory(site, at, ++attempts));
    REQUIRE(name);
    order.work_name = *name;
    return order;
  }
  void save_packed(format::StepId at) {
    storage::PublishOrder order = order_of(at);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const auto flushed = run(write(site.at(order.work_name), make_numbers(at, rank), true, 0));
      REQUIRE((flushed ? "" : flushed.error().message()) == "");
      order.digests.push_back(flushed->digest);
    }
    const auto published = run(storage::publish(site, order));
    REQUIRE((published ? "" : published.error().message()) == "");
  }
  std::shared_ptr<const format::Manifest> manifest(const std::string& name) {
    const auto read = run(storage::read_manifest(site, name));
    REQUIRE((read ? "" : read.error().message()) == "");
    return *read;
  }
  // Reads a rank, and compares it with what was saved.
  Status read(const std::string& name, std::uint32_t rank = 0) {
    const auto shards = manifest(name)->shards;
    const MadeShard expected = make_numbers(manifest(name)->at, rank);
    std::vector<std::byte> target(expected.record->bytes, std::byte{0xee});
    const auto place = storage::shard_place(site.at(name), shards[rank]);
    CKPT_CHECK(run(storage::read_shard(files, place, expected.record, target, {})));
    if (std::memcmp(target.data(), expected.bytes->data(), target.size()) != 0)
      return fail(Errc::invalid_argument, "other bytes than were saved, and nobody noticed");
    return {};
  }
  std::string problem_of(const std::string& file, const std::string& name) {
    const auto report = run(storage::verify_checkpoint(files, site.at(name)));
    REQUIRE((report ? "" : report.error().message()) == "");
    for (const storage::FileReport& each : report->files)
      if (each.name == file) return each.problem;
    return "there is no such file";
  }
};

}  // namespace

TEST_CASE_METHOD(PackedScene, "packed: a checkpoint comes back, and its manifest says how it lies",
                 "[unit][storage]") {
  save_packed(step_id(7));
  const std::string name = storage::step_directory_name(Step{7});
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const Status same = read(name, rank);
    CHECK((same ? "" : same.error().message()) == "");
    CHECK(manifest(name)->shards[rank].files[0].table.has_value());
    CHECK_FALSE(manifest(name)->shards[rank].files[1].table.has_value());
  }
  const format::StoredFile numbers = manifest(name)->shards[0].files[0];
  const format::StoredFile noise = manifest(name)->shards[1].files[0];
  CHECK(numbers.name == packed_file);
  CHECK(numbers.bytes < 5 * chunk_bytes * 6 / 10);
  CHECK(noise.bytes < 6 * chunk_bytes + 3 * page_bytes);
  const auto report = run(storage::verify_checkpoint(files, site.at(name)));
  REQUIRE(report);
  CHECK(report->is_good());
  CHECK(report->foreign.empty());
  // The copy is the same one as in memory.
  CHECK(manifest(name)->shards[0].record_digest ==
        format::digest_of(*make_numbers(step_id(7)).record));
  CHECK(catalog().rejected.empty());
}

TEST_CASE_METHOD(PackedScene, "packed: frames may become ready in any order", "[unit][storage]") {
  const MadeShard shard = make_numbers(step_id(7));
  const format::PackedShape shape{format::member_extents(*shard.record)[0], chunk_bytes};
  const std::string path = "/scratch/frames";
  auto file = run(files.create(path, os::Caching::buffered));
  REQUIRE(file);
  storage::PackedWriter writer(**file, shape, storage::frame_widths(*shard.record, 0), {});
  for (std::size_t frame = shape.frame_count(); frame-- > 0;) {
    const format::Extent plain = shape.plain(frame);
    const auto bytes = std::span<const std::byte>(*shard.bytes).subspan(plain.offset, plain.bytes);
    REQUIRE(run(writer.write(frame, {bytes}, crc32(bytes), {})));
  }
  REQUIRE(run(writer.finish()));
  const std::string content = disk.content(path);
  CHECK(writer.crc() == crc32(std::as_bytes(std::span(content))));
}

TEST_CASE_METHOD(PackedScene, "packed: single Chunks are read without the others",
                 "[unit][storage]") {
  save_packed(step_id(7));
  const std::string name = storage::step_directory_name(Step{7});
  const MadeShard expected = make_numbers(step_id(7));
  const auto opened = run(storage::ShardFiles::open(
      files, storage::shard_place(site.at(name), manifest(name)->shards[0]), expected.record));
  REQUIRE(opened);
  CHECK((*opened)->is_packed());
  disk.clear_log();
  const format::Extent chunk = expected.record->chunk(3);
  std::vector<std::byte> target(chunk.bytes);
  REQUIRE(run((*opened)->read_chunk(3, target, {})));
  CHECK(std::memcmp(target.data(), expected.bytes->data() + chunk.offset, chunk.bytes) == 0);
  CHECK(disk.log().size() == 1);
}

TEST_CASE_METHOD(PackedScene, "packed: damage anywhere is found, and never served",
                 "[unit][storage]") {
  save_packed(step_id(7));
  const std::string name = storage::step_directory_name(Step{7});
  const std::string path = "/scratch/job/" + name + "/" + packed_file;
  const std::string good = disk.content(path);
  const auto table = manifest(name)->shards[0].files[0].table;
  REQUIRE(table);
  for (std::size_t at = 0; at < good.size(); at += at + 600 < good.size() ? 977 : 1) {
    disk.put(path, good);
    disk.flip(path, at, 4);
    const Status status = read(name);
    // The zeros behind a frame are not read.
    CHECK((status || status.error().code() == Errc::corruption));
    if (at >= good.size() - table->bytes) CHECK_FALSE(status);
    if (!status) CHECK_THAT(status.error().message(), Contains(packed_file));
    REQUIRE_THAT(problem_of(packed_file, name), Contains("do not match its checksum"));
  }
  disk.put(path, good.substr(0, good.size() - 1));
  CHECK(read(name).error().code() == Errc::corruption);
  disk.put(path, good);
  CHECK(read(name));
}

TEST_CASE_METHOD(PackedScene, "packed: the plain file of a writer before is no part of the step",
                 "[unit][storage]") {
  const format::StepId at = step_id(7);
  storage::PublishOrder order = order_of(at);
  const std::string directory = site.at(order.work_name);
  const bool is_first_packed = GENERATE(true, false);
  REQUIRE(run(write(directory, make_numbers(at), is_first_packed, 0)));
  const auto second = run(write(directory, make_numbers(at), !is_first_packed, 1));
  const auto other = run(write(directory, make_numbers(at, 1), true, 0));
  REQUIRE(second);
  REQUIRE(other);
  order.digests = {second->digest, other->digest};
  order.turns = {1, 0};
  REQUIRE(run(storage::publish(site, order)));
  const std::string name = storage::step_directory_name(at.step);
  CHECK(read(name));
  CHECK(read(name, 1));
  const auto report = run(storage::verify_checkpoint(files, site.at(name)));
  REQUIRE(report);
  CHECK(report->is_good());
  CHECK(report->foreign.empty());
}

TEST_CASE_METHOD(PackedScene, "packed: a copy has the files as they are", "[unit][storage]") {
  save_packed(step_id(7));
  const std::string name = storage::step_directory_name(Step{7});
  storage::CopyOrder order;
  order.manifest = manifest(name);
  order.sources.push_back(storage::OpenStep::known(site, name, order.manifest));
  order.attempt = ++attempts;
  disk.put_directory("/scratch/other");
  const storage::Site target(files, clock, "/scratch/other");
  const std::string file = "/" + name + "/" + packed_file;
  SECTION("whole") {
    const auto copied = run(storage::copy_checkpoint(target, order));
    REQUIRE((copied ? "" : copied.error().message()) == "");
    CHECK(disk.content("/scratch/other" + file) == disk.content("/scratch/job" + file));
    const auto report = run(storage::verify_checkpoint(files, target.at(name)));
    REQUIRE(report);
    CHECK(report->is_good());
  }
  SECTION("not of damaged files") {
    disk.flip("/scratch/job" + file, page_bytes, 0);
    const auto copied = run(storage::copy_checkpoint(target, order));
    REQUIRE_FALSE(copied);
    CHECK(copied.error().code() == Errc::corruption);
  }
}

TEST_CASE_METHOD(PackedScene, "packed: failed operations leave no checkpoint", "[unit][storage]") {
  for (std::uint64_t failing = 0;; ++failing) {
    const format::StepId at = step_id(10 + failing);
    storage::PublishOrder order = order_of(at);
    disk.fail_at(failing, MemoryDisk::Fault());
    const auto written = run(write(site.at(order.work_name), make_numbers(at), true, 0));
    disk.clear_faults();
    if (written) {
      CHECK(failing > 5);
      break;
    }
    CHECK(written.error().code() == Errc::io);
    CHECK(catalog().checkpoints.empty());
  }
}

TEST_CASE_METHOD(PackedScene, "packed: removal takes the files along", "[unit][storage]") {
  save_packed(step_id(7));
  save_packed(step_id(8));
  REQUIRE(retain(1));
  CHECK(leftovers().empty());
  REQUIRE(catalog().checkpoints.size() == 1);
  CHECK(catalog().checkpoints[0].at == step_id(8));
}

TEST_CASE("packed: each Chunk has the width that most of its bytes are of", "[unit][storage]") {
  const MadeShard shard = make_numbers(step_id(1));
  const auto widths = storage::frame_widths(*shard.record, 0);
  REQUIRE(widths.size() == 6);
  CHECK(widths == std::vector<std::uint8_t>{2, 2, 2, 2, 2, 2});
}

}  // namespace ckpt::test
