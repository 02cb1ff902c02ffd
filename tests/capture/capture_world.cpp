#include "capture/capture_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/fingerprint.hpp"
#include "base/log.hpp"
#include "device/host_device.hpp"
#include "format/safetensors_header.hpp"
#include "support/patience.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t world_chunk = 32 * KiB;
constexpr std::byte of_the_next{0x55};  // A Slot's next user writes this.

bool holds_only(std::span<const std::byte> bytes, std::byte byte) {
  if (bytes.empty()) return true;
  return bytes[0] == byte && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Around what copies, batches and Chunks are cut at.
std::size_t size_of_tensor(std::size_t index, std::uint64_t seed) {
  static constexpr std::size_t sizes[] = {1,
                                          4,
                                          4096,
                                          4097,
                                          world_chunk - 1,
                                          world_chunk,
                                          world_chunk + 1,
                                          3 * world_chunk,
                                          64 * KiB,
                                          512,
                                          4 * world_chunk,
                                          24};
  return sizes[(index + seed) % std::size(sizes)];
}

}  // namespace

WorldOptions options_of(std::uint64_t seed, const std::string& words) {
  WorldOptions options;
  options.seed = seed;
  options.words = fmt::format("seed={} {}", seed, words);
  return options;
}

CaptureWorld::CaptureWorld(const WorldOptions& options, std::uint64_t plant, int error)
    : pins_(std::make_shared<device::MemoryPins>()),
      threads_(std::make_unique<device::CopyThreads>(1)),
      host_(std::make_unique<device::HostDevice>(*threads_)),
      seed_(options.seed),
      is_skipping_(options.device.skips_unchanged),
      changes_(options.changes),
      has_hashes_(options.has_hashes),
      trains_long_(options.trains_long) {
  Log::set_level(LogLevel::error);
  trainer_ = std::make_unique<StandInTrainer>(options.words);
  make_tensors(options);
  stand_in().plant(plant, error);
  if (!make_snapshotter(options)) snapshotter_.reset();
}

CaptureWorld::~CaptureWorld() {
  stand_in().plant(0, 0);
  snapshotter_.reset();
  pins_->stop();
  pinned_.clear();
  gpus_.reset();
}

void CaptureWorld::make_tensors(const WorldOptions& options) {
  std::vector<format::TensorSpec> specs;
  for (std::size_t i = 0; i < options.tensors; ++i) {
    Tensor tensor;
    tensor.name = fmt::format("t{}", i);
    tensor.is_guarded =
        options.guarded == Guarded::all || (options.guarded == Guarded::some && i % 3 != 0);
    tensor.gpu = static_cast<int>(i) % options.gpus;
    tensor.bytes.resize(size_of_tensor(i, options.seed));
    if (tensor.gpu == 0) {
      tensor.data = trainer_->allocate(tensor.bytes.size());
    } else {
      tensor.data = trainer_->allocate_on(tensor.gpu, tensor.bytes.size());
    }
    format::TensorSpec spec;
    spec.name = tensor.name;
    spec.dtype = DType::u8;
    spec.shape = {static_cast<std::int64_t>(tensor.bytes.size())};
    specs.push_back(spec);
    tensors_.push_back(std::move(tensor));
  }
  layout_ = format::make_layout(specs, 0, 0).value();
}

bool CaptureWorld::make_snapshotter(const WorldOptions& options) {
  const auto refuse = [&](const Error& error) {
    note(error);
    return false;
  };
  auto gpus = device::Gpus::open(options.device, pins_);
  if (!gpus) return refuse(gpus.error());
  gpus_ = std::move(*gpus);
  devices_ = {host_.get()};
  std::map<int, std::size_t> index_of;
  for (const Tensor& tensor : tensors_) {
    auto device = gpus_->device_of(tensor.data, tensor.gpu);
    if (!device) return refuse(device.error());
    if (index_of.emplace(tensor.gpu, devices_.size()).second) devices_.push_back(*device);
  }
  std::vector<snapshot::Source> sources;
  std::vector<snapshot::HashedSource> hashed;
  for (const auto& place : layout_.tensors) {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const Tensor& one) { return one.name == place.name; });
    order_.push_back(static_cast<std::size_t>(found - tensors_.begin()));
    const bool is_frozen = options.has_frozen && order_.back() % 2 == 0;
    sources.push_back({found->data, index_of.at(found->gpu), found->is_guarded, is_frozen});
    if (!has_hashes_) continue;
    hashed.push_back(
        {{found->data, found->bytes.size()}, found->is_guarded, sources.back().device});
  }
  for (std::size_t i = 0; i < options.slots; ++i) {
    // Pages of its own, as a real Slot has them.
    auto slot = std::make_shared<std::vector<std::byte>>(layout_.slot_bytes + 2 * page_bytes);
    const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(slot->data()) % page_bytes;
    slots_.push_back(slot);
    if (options.is_pinned)
      pinned_.push_back(pins_->hold(std::span(*slot).subspan(first, layout_.slot_bytes), slot));
  }
  (void)pins_->wait_settled(soon());
  format::HeaderFacts facts;
  facts.job = "capture";
  facts.run = to_hex(Digest{});
  auto header = format::render_header(layout_, facts).value();
  snapshot::CaptureListener& listener = *this;
  snapshotter_ = std::make_unique<snapshot::Snapshotter>(
      snapshot::Snapshotter::Plan{layout_, sources, std::move(header), devices_, world_chunk,
                                  hashed, is_skipping_ ? slots_.size() : 0},
      listener);
  update(false);
  update(true);
  return true;
}

void CaptureWorld::note(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (first_error_.empty()) first_error_ = error.message();
}

void CaptureWorld::note_wrong(const std::string& what) {
  const std::lock_guard lock(mutex_);
  wrong_ += what;
}

std::string CaptureWorld::wrong() const {
  const std::lock_guard lock(mutex_);
  return wrong_;
}

void CaptureWorld::update(bool guarded) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    if (tensor.is_guarded != guarded) continue;
    const std::uint64_t seed = seed_ * 1'000'003 + step_ * 1009 + i;
    const std::size_t size = tensor.bytes.size();
    const std::size_t wanted = step_ > 0 && changes_ ? changes_(i, step_) : size;
    if (wanted == 0) continue;
    const std::size_t count = std::min(wanted, size);
    const std::size_t first = seed % (size - count + 1);
    auto bytes = random_bytes(count, seed);
    // Another one in any case.
    if (bytes.front() == tensor.bytes[first]) bytes.front() ^= std::byte{1};
    std::ranges::copy(bytes, tensor.bytes.begin() + static_cast<std::ptrdiff_t>(first));
    trainer_->write(tensor.data, tensor.bytes);
  }
}

bool CaptureWorld::wait_idle() {
  if (snapshotter_->wait_idle(soon())) return true;
  note_wrong(fmt::format("step {} does not end\n", step_));
  return false;
}

std::span<std::byte> CaptureWorld::slot(std::size_t index) const {
  std::vector<std::byte>& memory = *slots_[index];
  const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(memory.data()) % page_bytes;
  return std::span(memory).subspan(first, layout_.slot_bytes);
}

bool CaptureWorld::step() {
  if (!wait_idle()) return false;
  ++step_;
  expected_.clear();
  for (const std::size_t index : order_) expected_.push_back(tensors_[index].bytes);
  slot_ = slot(slot_of(step_));
  if (!is_skipping_) std::fill(slot_.begin(), slot_.end(), std::byte{0xee});
  snapshot::CaptureRequest request;
  request.step = Step{step_};
  request.slot = slot_;
  request.generation = generation_ == 0 ? 0 : generation_ + slot_of(step_);
  request.stream = trainer_->stream();
  if (has_hashes_) choose_hashed();
  request.hashed = stretches_;
  const Status begun = snapshotter_->begin(request);
  if (!begun) note(begun.error());
  update(false);
  while (trains_long_ && snapshotter_->is_running()) std::this_thread::yield();
  const Status guarded = snapshotter_->guard(trainer_->stream());
  if (!guarded) note(guarded.error());
  update(true);
  return wrong().empty();
}

bool CaptureWorld::run(std::size_t steps) {
  for (std::size_t i = 0; i < steps; ++i) {
    if (!step()) return false;
  }
  return wait_idle() && findings().empty();
}

void CaptureWorld::capture_ended(const snapshot::Captured& captured) {
  if (!captured.status) {
    ++failed_;
    note(captured.status.error());
  } else {
    good_ += is_right(layout_.slot_bytes) ? 1 : 0;
    bytes_unchanged_ = captured.bytes_unchanged;
    if (has_hashes_) look_at_hashes(captured.hashes);
  }
  if (!is_skipping_) std::fill(slot_.begin(), slot_.end(), of_the_next);
  left_.assign(slot_.begin(), slot_.end());
}

// All of a tensor, a part that begins and ends anywhere, or nothing.
void CaptureWorld::choose_hashed() {
  stretches_.clear();
  for (const auto& bytes : expected_) {
    const std::uint64_t kind = (stretches_.size() + step_) % 4;
    const std::uint64_t begin = kind == 1 ? bytes.size() / 3 : 0;
    stretches_.push_back({begin, kind == 2 ? 0 : bytes.size() - begin - (kind == 3 ? 1 : 0)});
  }
}

void CaptureWorld::look_at_hashes(std::span<const std::optional<Crc32>> hashes) {
  std::size_t taken = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const device::Stretch& stretch = stretches_[i];
    const auto bytes = std::span(expected_[i]).subspan(stretch.offset, stretch.bytes);
    if (!hashes[i]) continue;
    ++taken;
    if (*hashes[i] == short_fingerprint(fingerprint_of(bytes))) continue;
    note_wrong(fmt::format("step {}: the checksum of {} is of other bytes\n", step_,
                           layout_.tensors[i].name));
  }
  hashed_ += taken == expected_.size() ? 1 : 0;
}

void CaptureWorld::capture_arrived(std::uint64_t bytes) {
  (void)is_right(bytes);
}

bool CaptureWorld::is_right(std::uint64_t slot_end) {
  for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
    const format::Extent extent = layout_.tensors[i].extent;
    if (extent.offset + extent.bytes > slot_end) continue;
    const auto found = slot_.subspan(extent.offset, extent.bytes);
    if (std::memcmp(found.data(), expected_[i].data(), found.size()) == 0) continue;
    note_wrong(fmt::format("step {}: {} holds other bytes\n", step_, layout_.tensors[i].name));
    return false;
  }
  return true;
}

std::string CaptureWorld::findings() const {
  std::string all = wrong() + stand_in().violations();
  if (snapshotter_ == nullptr || snapshotter_->is_running()) return all;
  // Nothing may write into a Slot after its capture has ended.
  stand_in().run_all();
  const bool is_left =
      is_skipping_ ? std::ranges::equal(slot_, left_) : holds_only(slot_, of_the_next);
  if (!is_left) all += "a Slot was written after its capture had ended\n";
  return all;
}

}  // namespace ckpt::test
