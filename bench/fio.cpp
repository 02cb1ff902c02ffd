#include "bench/fio.hpp"

#include <nlohmann/json.hpp>

#include "bench/must.hpp"
#include "bench/process.hpp"

namespace bench {

double fio_rate(const FioJob& job) {
  Command command = {"fio",
                     "--name=bench",
                     "--filename=" + job.path,
                     "--size=" + std::to_string(job.bytes),
                     "--bs=" + std::to_string(job.block_bytes),
                     "--iodepth=" + std::to_string(job.depth),
                     "--ioengine=io_uring",
                     "--direct=1",
                     "--output-format=json",
                     job.is_write ? "--rw=write" : "--rw=read"};
  if (job.is_write) command.insert(command.end(), {"--end_fsync=1", "--fallocate=native"});
  const auto report = nlohmann::json::parse(output_of(command), nullptr, false);
  if (report.is_discarded()) give_up("fio: it said no JSON");
  const auto& half = report["jobs"][0][job.is_write ? "write" : "read"];
  // fio's times have a resolution of a millisecond: for a run of a second, one in a thousand.
  return half["io_bytes"].get<double>() * 1000 / half["runtime"].get<double>();
}

}  // namespace bench
