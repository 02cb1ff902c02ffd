#include "support/cuda_stand_in/kernels.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/changed_copy_lane.hpp"
#include "device/fingerprint_lane.hpp"
#include "device/gather_lane.hpp"

namespace ckpt::test {

namespace {

using device::FingerprintEntry;
using device::GatherEntry;

constexpr std::string_view gather_name = "ckpt_gather";
constexpr std::string_view fingerprint_name = "ckpt_fingerprint";
constexpr std::string_view changed_copy_name = "ckpt_changed_copy";

void lose_by_address(World& world, StreamQueue& stream) {
  world.violate("a kernel has used memory that it must not");
  world.lose(*stream.context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

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
    lose_by_address(*world, *stream);
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

// A copy of a table on the GPU, whose sources are where the stand-in has them; those that it does
// not know are null.
std::vector<FingerprintEntry> table_of(World& world, const StreamQueue& stream, CUdeviceptr address,
                                       unsigned entry_count) {
  const auto on_gpu = [&](CUdeviceptr at, std::size_t bytes) -> std::byte* {
    return world.device_of(at) == stream.context->device ? world.at(at, bytes) : nullptr;
  };
  std::vector<FingerprintEntry> made(entry_count);
  const std::byte* const bytes = on_gpu(address, entry_count * sizeof(FingerprintEntry));
  if (bytes == nullptr || entry_count == 0) return made;
  std::memcpy(made.data(), bytes, entry_count * sizeof(FingerprintEntry));
  for (FingerprintEntry& entry : made)
    entry.source = reinterpret_cast<std::uint64_t>(on_gpu(entry.source, entry.bytes));
  return made;
}

struct Fingerprint {
  World* world = nullptr;
  StreamQueue* stream = nullptr;
  CUdeviceptr entries = 0;
  unsigned count = 0;
  CUdeviceptr fragments = 0;
  unsigned fragment_count = 0;
  std::uint64_t chunk_bytes = 0;
  CUdeviceptr sums = 0;

  std::byte* on_gpu(CUdeviceptr address, std::size_t bytes) const {
    return world->device_of(address) == stream->context->device ? world->at(address, bytes)
                                                                : nullptr;
  }
  std::vector<FingerprintEntry> table(CUdeviceptr address, unsigned entry_count) const {
    return table_of(*world, *stream, address, entry_count);
  }
  // False: the context is lost by it.
  bool add(const FingerprintEntry& entry, const FingerprintSums& added) const {
    const std::uint64_t chunk = entry.slot_offset / chunk_bytes;
    auto* const sum = reinterpret_cast<FingerprintSums*>(
        on_gpu(sums + chunk * sizeof(FingerprintSums), sizeof(FingerprintSums)));
    if (entry.source == 0 || sum == nullptr) {
      lose_by_address(*world, *stream);
      return false;
    }
    sum->low += added.low;
    sum->high += added.high;
    return true;
  }
  void run() const {
    for (const FingerprintEntry& entry : table(entries, count)) {
      FingerprintSums added;
      for (unsigned lane = 0; entry.source != 0 && lane < device::fingerprint_lanes; ++lane)
        device::add_entry(entry, chunk_bytes, lane, added);
      if (!add(entry, added)) return;
    }
    const auto parts = table(fragments, fragment_count);
    for (const FingerprintEntry& part : parts) {
      if (part.source == 0) return lose_by_address(*world, *stream);
    }
    for (unsigned index = 0; index < fragment_count; ++index) {
      FingerprintSums added;
      if (!device::add_fragments(parts.data(), fragment_count, index, chunk_bytes, added)) continue;
      if (!add(parts[index], added)) return;
    }
  }
};

struct ChangedCopy {
  World* world = nullptr;
  StreamQueue* stream = nullptr;
  CUdeviceptr entries = 0;
  unsigned count = 0;
  CUdeviceptr fragments = 0;
  unsigned fragment_count = 0;
  std::uint64_t part_bytes = 0;
  CUdeviceptr now = 0;
  CUdeviceptr before = 0;
  unsigned char* slot = nullptr;
  CUdeviceptr copied = 0;

  // Calls `change` for each entry and each fragment whose part has changed. False: it uses memory
  // that it must not, and the context is lost by it.
  template <class Change>
  bool for_changed(Change change) const {
    for (const bool is_fragment : {false, true}) {
      const auto table = is_fragment ? table_of(*world, *stream, fragments, fragment_count)
                                     : table_of(*world, *stream, entries, count);
      for (const FingerprintEntry& entry : table) {
        const FingerprintSums* const is = sums_of(now, entry);
        const FingerprintSums* const was = sums_of(before, entry);
        const bool is_known =
            entry.source != 0 && is != nullptr && was != nullptr &&
            world->at(copied, sizeof(std::uint64_t)) != nullptr &&
            world->settings.host_pointers != 0 &&
            world->kind_of(slot + entry.slot_offset, entry.bytes) == World::HostKind::pinned;
        if (!is_known) {
          lose_by_address(*world, *stream);
          return false;
        }
        // The lane counts parts from the Slot's first one.
        const std::uint64_t part = entry.slot_offset / part_bytes;
        if (device::has_changed({part_bytes, is - part, was - part}, entry))
          change(entry, is_fragment);
      }
    }
    return true;
  }
  const FingerprintSums* sums_of(CUdeviceptr sums, const FingerprintEntry& entry) const {
    const CUdeviceptr address = sums + entry.slot_offset / part_bytes * sizeof(FingerprintSums);
    return reinterpret_cast<const FingerprintSums*>(world->at(address, sizeof(FingerprintSums)));
  }
  void start() const {
    for_changed([&](const FingerprintEntry& entry, bool) {
      std::memset(slot + entry.slot_offset, poison, entry.bytes);
    });
  }
  void run() const {
    std::uint64_t bytes = 0;
    const bool is_sound = for_changed([&](const FingerprintEntry& entry, bool is_fragment) {
      if (is_fragment) {
        device::copy_fragment(entry, slot);
        bytes += entry.bytes;
        return;
      }
      for (unsigned item = 0; item < device::changed_copy_items; ++item) {
        bytes += device::bytes_of_item(entry, item);
        for (unsigned lane = 0; lane < device::fingerprint_lanes; ++lane)
          device::copy_item(entry, item, slot, lane);
      }
    });
    if (!is_sound) return;
    if (bytes > 0) *reinterpret_cast<std::uint64_t*>(world->at(copied, sizeof(bytes))) += bytes;
    world->counts.bytes_by_kernel += bytes;
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
                        std::strstr(text, ".visible .entry ckpt_") != nullptr;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

bool has_kernel(std::string_view name) {
  return name == gather_name || name == fingerprint_name || name == changed_copy_name;
}

namespace {

// The arguments are taken at the call.
Work work_of_gather(World& world, StreamQueue& stream, void** arguments) {
  const Gather gather{&world,
                      &stream,
                      argument<CUdeviceptr>(arguments, 0),
                      argument<unsigned>(arguments, 1),
                      argument<unsigned>(arguments, 2),
                      argument<unsigned char*>(arguments, 3)};
  Work work;
  if (gather.count > 0) {
    work.is_copy = true;
    work.host = gather.slot;  // The kernel knows how much of it.
    work.host_bytes = 1;
    work.start = [gather] { gather.start(); };
    work.run = [gather] { gather.run(); };
  }
  return work;
}

Work work_of_fingerprint(World& world, StreamQueue& stream, const Launch& launch) {
  void** const arguments = launch.arguments;
  const Fingerprint fingerprint{&world,
                                &stream,
                                argument<CUdeviceptr>(arguments, 0),
                                argument<unsigned>(arguments, 1),
                                argument<CUdeviceptr>(arguments, 2),
                                argument<unsigned>(arguments, 3),
                                argument<std::uint64_t>(arguments, 4),
                                argument<CUdeviceptr>(arguments, 5)};
  if (fingerprint.count + fingerprint.fragment_count > 0)
    world.counts.blocks_max = std::max<std::uint64_t>(world.counts.blocks_max, launch.blocks);
  Work work;
  work.run = [fingerprint] { fingerprint.run(); };
  return work;
}

Work work_of_changed_copy(World& world, StreamQueue& stream, void** arguments) {
  const ChangedCopy copy{&world,
                         &stream,
                         argument<CUdeviceptr>(arguments, 0),
                         argument<unsigned>(arguments, 1),
                         argument<CUdeviceptr>(arguments, 2),
                         argument<unsigned>(arguments, 3),
                         argument<std::uint64_t>(arguments, 4),
                         argument<CUdeviceptr>(arguments, 5),
                         argument<CUdeviceptr>(arguments, 6),
                         argument<unsigned char*>(arguments, 7),
                         argument<CUdeviceptr>(arguments, 8)};
  Work work;
  if (copy.count + copy.fragment_count > 0) {
    work.is_copy = true;
    work.host = copy.slot;  // The kernel knows how much of it.
    work.host_bytes = 1;
    work.start = [copy] { copy.start(); };
    work.run = [copy] { copy.run(); };
  }
  return work;
}

}  // namespace

CUresult launch_kernel(World& world, StreamQueue& stream, std::string_view name,
                       const Launch& launch) {
  static_assert(device::gather_lanes == device::fingerprint_lanes);
  if (launch.blocks == 0 || launch.threads == 0 || launch.threads > 1024 ||
      launch.threads % device::gather_lanes != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Work work = name == gather_name        ? work_of_gather(world, stream, launch.arguments)
              : name == fingerprint_name ? work_of_fingerprint(world, stream, launch)
                                         : work_of_changed_copy(world, stream, launch.arguments);
  if (++world.counts.kernels == world.settings.fail_launch)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  work.is_kernel = true;
  work.ends_block = true;
  world.queue(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace ckpt::test
