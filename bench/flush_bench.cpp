// Flushes of a whole step to a real disk, against fio and against a program without libckpt.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.hpp"
#include "base/units.hpp"
#include "bench/fio.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/stored.hpp"

namespace {

void write_buffered(const std::string& path, std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) bench::give_up("buffered write: " + path + " cannot be made");
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), ckpt::default_chunk_bytes));
    if (written <= 0) break;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (!bytes.empty() || ::fsync(fd) != 0) bench::give_up("buffered write failed");
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("flush", argc, argv);
  bench::Loop loop;
  bench::Shard shard(loop, harness.bytes());
  const std::string directory = harness.disk_directory();
  bench::Stored stored(loop, directory + "/flush");
  const auto amount = static_cast<double>(shard.record->bytes);

  const auto flush = [&] {
    const double speed = bench::rate(amount, [&] { stored.flush(shard); });
    stored.remove_steps();
    return speed;
  };
  const auto fio = [&] {
    bench::FioJob job;
    job.path = directory + "/fio";
    job.bytes = shard.record->bytes;
    job.block_bytes = ckpt::default_chunk_bytes;
    job.depth = ckpt::storage::chunks_in_flight;
    job.is_write = true;
    const double speed = bench::fio_rate(job);
    std::filesystem::remove(job.path);
    return speed;
  };
  const auto buffered = [&] {
    const std::string path = directory + "/buffered";
    const double speed = bench::rate(amount, [&] { write_buffered(path, shard.slot()); });
    std::filesystem::remove(path);
    return speed;
  };
  bench::Bar against_fio{"B6", "flush, verified and published / fio write", 0.95, 0.80};
  bench::Bar against_buffered{"B7", "flush / buffered write and fsync", 2.0, 1.3};
  against_fio.is_judged = false;  // Disks of shared machines are throttled by their hosts.
  against_buffered.is_judged = false;
  harness.compare(against_fio, flush, fio);
  harness.compare(against_buffered, flush, buffered);
  return harness.finish();
}
