// Goal:   a step of many ranks and tensors is published and planned in bounded memory, and no work
//         on one thread grows with ranks times tensors but the reading of what a reader asks for.
// Method: 16,384 ranks, each with a slice of 1,000 tensors, as writers leave them in a work
//         directory: parts with all their pieces, files of the right size without content. Then the
//         step is published, listed, and planned by one rank of a job of half as many ranks, which
//         looks its tensors up in all parts, by the code of a restore. Time and memory of each.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.hpp"
#include "base/units.hpp"
#include "bench/harness.hpp"
#include "bench/loop.hpp"
#include "bench/must.hpp"
#include "gather/piece_reader.hpp"
#include "gather/stored_shards.hpp"
#include "os/ring_file_system.hpp"
#include "storage/catalog.hpp"
#include "storage/publish.hpp"
#include "storage/step_directory.hpp"

namespace {

using namespace ckpt;

constexpr std::uint64_t slice = 4;  // Elements of each tensor that a rank holds.
constexpr std::uint32_t tensors = 1000;

std::uint32_t number_from(const char* variable, std::uint32_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

std::string name_of(std::uint32_t tensor) {
  return fmt::format("optimizer.state.model.layers.{}.mlp.weight.exp_avg", tensor);
}

format::ShardPart part_of(std::uint32_t rank, std::uint32_t ranks) {
  std::vector<format::TensorSpec> specs(tensors);
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    format::TensorSpec& spec = specs[tensor];
    spec.name = name_of(tensor);
    spec.dtype = DType::f32;
    spec.shape = {slice};
    spec.piece = Piece{{slice * ranks}, {slice * rank}, {}, {}, 0};
  }
  format::ShardPart part;
  format::ShardRecord& record = part.record;
  record.job = "bench";
  record.run = {1, 2};
  record.id = {{1, Step{1}}, rank};
  record.world_size = ranks;
  record.layout = bench::must(format::make_layout(specs, rank, 0));
  record.model = format::fingerprint(record.layout);
  record.bytes = record.layout.slot_bytes;
  record.chunk_bytes = 4 * MiB;
  record.chunk_crcs.assign(div_ceil(record.bytes, record.chunk_bytes), rank);
  part.member_crcs = {rank};
  return part;
}

// Leaves the part of a rank's writer. Its time is not measured: each node has its own.
Digest leave_part(const std::filesystem::path& directory, std::uint32_t rank, std::uint32_t ranks) {
  const format::ShardPart part = part_of(rank, ranks);
  const auto bytes = format::encode(part);
  std::ofstream file(directory / format::part_name(rank), std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  for (const format::StoredFile& stored : format::files_of(part)) {
    std::ofstream(directory / stored.name).close();
    std::filesystem::resize_file(directory / stored.name, stored.bytes);
  }
  if (!file.good()) bench::give_up("the disk is full");
  return format::digest_of(part.record);
}

// The peak of resident memory since the last call, in MiB.
double take_peak_mib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  double kib = 0;
  while (status >> word && word != "VmHWM:") {
  }
  status >> kib;
  std::ofstream("/proc/self/clear_refs") << "5";
  return kib / 1024;
}

// One rank of a job of half as many ranks wants its slices, which are twice as long. It looks them
// up and plans as a restore does.
Task<void> plan_one(storage::Site site, std::string name, std::uint32_t reader) {
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest(site, name));
  const std::uint64_t begin = 2 * slice * reader;
  std::vector<gather::WantedPiece> wanted(tensors);
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
    plan::Want& want = wanted[tensor].want;
    want.name = name_of(tensor);
    want.dtype = DType::f32;
    want.shape = {slice * manifest->world_size};
    want.region = Box{{begin}, {2 * slice}};
  }
  gather::StoredShards shards(storage::OpenStep::known(site, name, manifest));
  const gather::ReaderRank rank{reader, manifest->world_size / 2};
  auto planned = co_await gather::check_pieces(shards, rank, std::move(wanted));
  co_return planned;
}

using Steady = std::chrono::steady_clock;
double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  using bench::Better;
  bench::Harness harness("publish", argc, argv);
  Log::set_level(LogLevel::error);
  const std::uint32_t ranks = number_from("CKPT_PUBLISH_RANKS", 16'384);
  const std::string directory = harness.disk_directory() + "/publish";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory + "/.libckpt");
  bench::Loop loop;
  const auto files = os::make_file_system();
  const storage::Site site(*files, *loop.clock, directory);

  storage::PublishOrder order;
  order.job = "bench";
  order.run = {1, 2};
  order.at = {1, Step{1}};
  order.world_size = ranks;
  order.work_name = bench::must(loop.run(storage::make_work_directory(site, order.at, 1)));
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    order.digests.push_back(leave_part(directory + "/" + order.work_name, rank, ranks));
  take_peak_mib();

  auto begin = Steady::now();
  const auto published = bench::must(loop.run(storage::publish(site, order)));
  const double publish_seconds = seconds_since(begin);
  const double publish_mib = take_peak_mib();
  begin = Steady::now();
  const auto catalog = bench::must(loop.run(storage::read_catalog(site, {})));
  const double list_seconds = seconds_since(begin);
  if (catalog.checkpoints.size() != 1) bench::give_up("the step is not listed");
  take_peak_mib();
  begin = Steady::now();
  bench::must(loop.run(plan_one(site, published.name, ranks / 4)));
  const double plan_seconds = seconds_since(begin);
  const double plan_mib = take_peak_mib();
  const std::filesystem::path step = directory + "/" + published.name;
  harness.add_condition(fmt::format("{} ranks of {} pieces: the root has {} bytes, a part {}",
                                    ranks, tensors,
                                    std::filesystem::file_size(step / format::manifest_name),
                                    std::filesystem::file_size(step / format::part_name(0))));
  const auto show = [&](const char* id, const std::string& what, const char* unit, double value) {
    harness.sample({id, what, 0, 0, Better::lower, unit, false}, 0.5, {value});
  };
  show("B36", "publish the step", "s", publish_seconds);
  show("B36 m", "publish the step: peak memory", "MiB", publish_mib);
  show("B36 l", "list the directory", "s", list_seconds);
  show("B36 p", "read all parts and plan one rank", "s", plan_seconds);
  show("B36 p m", "read all parts and plan one rank: peak memory", "MiB", plan_mib);
  std::filesystem::remove_all(directory);
  return harness.finish();
}
