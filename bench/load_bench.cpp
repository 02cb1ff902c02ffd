// A verified load of a step from a real disk into a Slot against fio's read of the same file.
#include <cstring>
#include <filesystem>

#include "base/log.hpp"
#include "base/units.hpp"
#include "bench/fio.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/stored.hpp"
#include "storage/catalog.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"

namespace {

using namespace ckpt;

Task<void> load(os::FileSystem& files, std::string step_directory, std::span<std::byte> target) {
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest_at(files, step_directory));
  CKPT_CO_TRY(const auto record, co_await storage::read_record(files, step_directory, manifest, 0));
  const storage::TransferHooks hooks;
  auto read = co_await storage::read_shard(files, storage::ShardPlace(step_directory), record,
                                           target, hooks);
  co_return read;
}

std::string largest_file(const std::string& directory) {
  std::string largest;
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.file_size() <= bytes) continue;
    bytes = entry.file_size();
    largest = entry.path();
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  Log::set_level(LogLevel::error);
  bench::Harness harness("load", argc, argv);
  bench::Loop loop;
  bench::Shard shard(loop, harness.bytes());
  bench::Stored stored(loop, harness.disk_directory() + "/load");
  stored.flush(shard);
  bench::FioJob job;
  job.path = largest_file(stored.step_directory());
  job.bytes = std::filesystem::file_size(job.path);
  job.block_bytes = default_chunk_bytes;
  job.depth = storage::chunks_in_flight_reading;
  const auto amount = static_cast<double>(shard.record->bytes);

  const auto ours = [&] {
    std::memset(shard.slot().data(), 0, shard.slot().size());
    return bench::rate(amount, [&] {
      bench::must(loop.run(load(stored.files(), stored.step_directory(), shard.slot())));
    });
  };
  const auto fio = [&] { return bench::fio_rate(job); };
  bench::Bar bar{"B14", "load from disk, verified / fio read", 1.05, 0.95};
  bar.is_judged = false;  // Disks of shared machines are throttled by their hosts.
  harness.compare(bar, ours, fio);
  return harness.finish();
}
