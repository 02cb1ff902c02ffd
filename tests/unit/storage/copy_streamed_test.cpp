// Goal:   a step whose Chunks come from elsewhere becomes the checkpoint that a flush of its Slots
//         would make, or does not appear.
// Method: streams over shards in memory, with windows of one Chunk, of some and of all; the files
//         are compared with those that write_shard made from the whole Slots.
#include "storage/copy_streamed.hpp"

#include "storage/put_step.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

class StreamedScene : public StorageFixture {
 public:
  StreamedScene() {
    open();
    must_save(step_id(1));
    timelines.run = test_run;
    timelines.history = {{1, {}}};
  }
  storage::ShardStream stream_of(std::uint32_t rank) {
    const MadeShard shard = make_rank(at, rank);
    storage::ShardStream stream;
    auto record = std::make_shared<format::ShardRecord>(*shard.record);
    if (!has_checksums) record->chunk_crcs.clear();
    stream.record = std::move(record);
    stream.chunks_at_once = chunks_at_once;
    stream.read = [this, shard](format::Extent range, std::span<std::byte> bytes) {
      return bring(shard, range, bytes);
    };
    return stream;
  }
  Result<storage::Copied> try_copy() {
    storage::CopyOrder order;
    auto read = run(storage::read_manifest(site, storage::step_directory_name(Step{1})));
    REQUIRE(read);
    auto manifest = std::make_shared<format::Manifest>(**read);
    for (format::ManifestShard& shard : manifest->shards) shard.files.clear();
    manifest->at = at;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      manifest->shards[rank].record_digest = format::digest_of(*make_rank(at, rank).record);
    order.streamed_from = "memory:job/step";
    order.manifest = std::move(manifest);
    order.timelines = std::make_shared<const format::Timelines>(timelines);
    order.attempt = ++attempts;
    order.hooks.verified = [this](std::uint64_t bytes) { bytes_done += bytes; };
    bytes_read = bytes_done = 0;
    return run(storage::copy_streamed(
        target, std::move(order), [this](std::uint32_t rank) { return ready(stream_of(rank)); }));
  }
  storage::Copied must_copy() {
    auto copied = try_copy();
    REQUIRE((copied ? "" : copied.error().message()) == "");
    return *copied;
  }
  std::uint64_t bytes_of_step() const {
    std::uint64_t bytes = 0;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      bytes += make_rank(at, rank).record->bytes;
    return bytes;
  }

  storage::Site target{files, clock, "/scratch/copy"};
  format::Timelines timelines;
  format::StepId at = step_id(1);
  bool has_checksums = true;
  std::size_t chunks_at_once = 2;
  std::optional<std::uint64_t> flipped;  // A byte of rank 1 that comes with other bits.
  std::optional<std::uint64_t> failing;  // No Chunk that begins behind this one comes.
  std::uint64_t bytes_read = 0, bytes_done = 0;

 private:
  static Task<storage::ShardStream> ready(storage::ShardStream stream) { co_return stream; }
  Task<void> bring(MadeShard shard, format::Extent range, std::span<std::byte> to) {
    REQUIRE(range.bytes == to.size());
    if (failing && range.offset > *failing) co_return fail(Errc::cancelled, "it was interrupted");
    std::memcpy(to.data(), shard.bytes->data() + range.offset, range.bytes);
    const bool is_here =
        flipped && shard.record->id.rank == 1 && *flipped >= range.offset && *flipped < range.end();
    if (is_here) to[*flipped - range.offset] ^= std::byte{1};
    bytes_read += range.bytes;
    co_return Status();
  }
};

}  // namespace

TEST_CASE_METHOD(StreamedScene, "streamed: the files are those of a flush", "[unit][storage]") {
  has_checksums = GENERATE(true, false);
  const std::size_t chunks = make_rank(at, 0).record->chunk_crcs.size();
  REQUIRE(chunks > 2);
  chunks_at_once = GENERATE_COPY(1, 2, chunks - 1, chunks, chunks + 1);
  const auto copied = must_copy();
  CHECK(copied.name == "step-000000001");
  CHECK_FALSE(copied.was_there);
  CHECK(bytes_read == bytes_of_step());
  CHECK(bytes_done == bytes_of_step());
  for (const std::string file :
       {"rank-00000.part", "rank-00000.safetensors", "rank-00001.part", "rank-00001.safetensors"}) {
    CAPTURE(file, chunks_at_once, has_checksums);
    CHECK(disk.content("/scratch/copy/step-000000001/" + file) ==
          disk.content("/scratch/job/step-000000001/" + file));
  }
  CHECK(disk.content("/scratch/copy/latest") == "step-000000001\n");
  const auto history = run(storage::load_timelines(target, test_run));
  REQUIRE(history);
  CHECK(history->history == timelines.history);
}

TEST_CASE_METHOD(StreamedScene, "streamed: the same step is found there, another one is left alone",
                 "[unit][storage]") {
  must_copy();
  CHECK(must_copy().was_there);
  CHECK(bytes_read == 0);
  at = step_id(1, 2);
  timelines.history = {{1, {}}, {2, {}}};
  const auto other = try_copy();
  REQUIRE_FALSE(other);
  CHECK(other.error().code() == Errc::invalid_argument);
  CHECK_THAT(other.error().message(), Contains("another checkpoint is there"));
  CHECK_THAT(other.error().message(), Contains("memory:job/step"));
  CHECK(bytes_read == 0);
}

TEST_CASE_METHOD(StreamedScene, "streamed: bytes that changed on their way are not published",
                 "[unit][storage]") {
  const std::uint64_t bytes = make_rank(at, 1).record->bytes;
  flipped = GENERATE_COPY(std::uint64_t{0}, bytes / 2);
  const auto copied = try_copy();
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code() == Errc::corruption);
  CHECK_THAT(copied.error().message(), Contains("rank 1 of step 1"));
  CHECK_FALSE(disk.exists("/scratch/copy/step-000000001"));
  CHECK(leftovers().empty());
}

TEST_CASE_METHOD(StreamedScene,
                 "streamed: a stream that ends early leaves neither step nor history",
                 "[unit][storage]") {
  failing = 0;
  const auto copied = try_copy();
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code() == Errc::cancelled);
  CHECK_FALSE(disk.exists("/scratch/copy/step-000000001"));
  CHECK(leftovers().empty());
  const auto history = run(storage::load_timelines(target, test_run));
  REQUIRE(history);
  CHECK(history->history.empty());  // It alone may abandon all that is there.
  failing.reset();
  CHECK_FALSE(must_copy().was_there);
}

}  // namespace ckpt::test
