#include "support/cuda_stand_in/kernels.hpp"

#include <cstring>

#include "device/gather_lane.hpp"

namespace ckpt::test {

namespace {

using device::GatherEntry;

constexpr unsigned char poison = 0xdb;
constexpr std::string_view gather_name = "ckpt_gather";

struct Gather {
  World* world = nullptr;
  StreamQueue* stream = nullptr;
  CUdeviceptr entries = 0;
  unsigned count = 0;
  unsigned parts = 0;
  unsigned char* slot = nullptr;

  bool is_known(const GatherEntry& entry) const {
    return world->at(entry.source, entry.bytes) != nullptr &&
           world->device_of(entry.source) == stream->context->device &&
           world->kind_of(slot + entry.slot_offset, entry.bytes) == World::HostKind::pinned;
  }
  // Null: the context is lost by it.
  const GatherEntry* table() const {
    if (world->settings.host_pointers == 0) return lose();
    const std::byte* const bytes = world->at(entries, count * sizeof(GatherEntry));
    const auto* const table = reinterpret_cast<const GatherEntry*>(bytes);
    for (unsigned i = 0; table != nullptr && i < count; ++i) {
      if (!is_known(table[i])) return lose();
    }
    return table;
  }
  const GatherEntry* lose() const {
    world->violate("a kernel has used memory that it must not");
    world->lose(*stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return nullptr;
  }
  void start() const {
    const GatherEntry* const of = table();
    for (unsigned i = 0; of != nullptr && i < count; ++i)
      std::memset(slot + of[i].slot_offset, poison, of[i].bytes);
  }
  void run() const {
    const GatherEntry* const of = table();
    for (unsigned item = 0; of != nullptr && item < count * parts; ++item) {
      GatherEntry entry = of[item / parts];
      entry.source = reinterpret_cast<std::uint64_t>(world->at(entry.source, entry.bytes));
      for (unsigned lane = 0; lane < device::gather_lanes; ++lane)
        device::gather_part(entry, item % parts, slot, lane);
    }
  }
};

template <class Value>
Value argument(void** arguments, std::size_t index) {
  Value value{};
  std::memcpy(&value, arguments[index], sizeof(value));
  return value;
}

}  // namespace

CUresult check_module(const World& world, const void* image) {
  const auto* const text = static_cast<const char*>(image);
  // Anything else is code for real GPUs.
  if (std::strncmp(text, "//", 2) != 0) return CUDA_ERROR_INVALID_IMAGE;
  if (world.settings.refuses_ptx != 0) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  const bool is_known = std::strstr(text, "\n.version 6.3\n") != nullptr &&
                        std::strstr(text, "\n.target sm_60\n") != nullptr &&
                        std::strstr(text, ".visible .entry ckpt_gather(") != nullptr;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

bool has_kernel(std::string_view name) {
  return name == gather_name;
}

CUresult launch_gather(World& world, StreamQueue& stream, const Launch& launch) {
  if (launch.blocks == 0 || launch.threads == 0 || launch.threads > 1024 ||
      launch.threads % device::gather_lanes != 0)
    return CUDA_ERROR_INVALID_VALUE;
  // The arguments are taken at the call.
  const Gather gather{&world,
                      &stream,
                      argument<CUdeviceptr>(launch.arguments, 0),
                      argument<unsigned>(launch.arguments, 1),
                      argument<unsigned>(launch.arguments, 2),
                      argument<unsigned char*>(launch.arguments, 3)};
  if (++world.counts.kernels == world.settings.fail_launch)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  Work work;
  work.is_kernel = true;
  work.ends_block = true;
  if (gather.count > 0) {
    work.is_copy = true;
    work.host = gather.slot;  // The kernel knows how much of it.
    work.host_bytes = 1;
    work.start = [gather] { gather.start(); };
    work.run = [gather] { gather.run(); };
  }
  world.queue(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace ckpt::test
