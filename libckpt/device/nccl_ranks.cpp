// The implementation of ckpt/gpu_ranks.hpp for builds with CUDA's headers.
#include <fmt/format.h>

#include <atomic>
#include <ckpt/gpu_ranks.hpp>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/assert.hpp"
#include "device/call_thread.hpp"
#include "device/nccl_group.hpp"

namespace ckpt {

namespace {

using device::Deadline;
using std::chrono::milliseconds;

static_assert(sizeof(GpuRanks::Id) == sizeof(device::NcclUniqueId));

Deadline after(milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

// Shared: what calls of the thread use, which may outlive the GpuRanks.
struct Shared {
  std::unique_ptr<device::CudaDriver> driver;
  std::unique_ptr<device::NcclLibrary> library;
  std::unique_ptr<device::NcclGroup> group;  // Null: not joined.
  int gpu = 0;
  milliseconds abort_patience{0};
  std::atomic<bool> is_quiet{true};
};

// NCCL_COMM_BLOCKING=1 makes calls wait inside NCCL, where no deadline reaches them.
Status check_environment() {
  const char* const set = std::getenv("NCCL_COMM_BLOCKING");
  if (set == nullptr || std::string_view(set) != "1") return {};
  return fail(Errc::unsupported, "NCCL_COMM_BLOCKING=1 is set, and deadlines need it unset or 0");
}

}  // namespace

class GpuRanks::Impl {
 public:
  Impl(std::shared_ptr<Shared> shared, std::unique_ptr<device::CallThread> thread)
      : shared_(std::move(shared)), thread_(std::move(thread)) {}
  ~Impl() { (void)close(shared_->abort_patience); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<Id> make_id(milliseconds timeout);
  Status join(const Place& place);
  Status broadcast(const GpuBroadcast& asked);
  Status close(milliseconds timeout);
  bool is_quiet() const { return shared_->is_quiet; }
  std::string library_name() const;

 private:
  // The call has time to abort what has not ended by its own deadline.
  template <class Call>
  Status run(milliseconds timeout, Call call) {
    return thread_->run([shared = shared_, call = std::move(call)] { return call(*shared); },
                        after(timeout + shared_->abort_patience));
  }

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<device::CallThread> thread_;
};

Result<GpuRanks::Id> GpuRanks::Impl::make_id(milliseconds timeout) {
  // Shared with a call that may be given up.
  auto id = std::make_shared<device::NcclUniqueId>();
  CKPT_CHECK(run(timeout, [id](Shared& shared) {
    return shared.library->check(shared.library->make_id(id.get()), "make an id for NCCL");
  }));
  Id made;
  std::memcpy(made.data(), id.get(), sizeof(made));
  return made;
}

Status GpuRanks::Impl::join(const Place& place) {
  if (place.ranks == 0 || place.rank >= place.ranks || place.ranks > INT_MAX)
    return fail(Errc::invalid_argument,
                fmt::format("join: there is no rank {} of {}", place.rank, place.ranks));
  device::NcclGroup::Place ours{shared_->gpu,
                                static_cast<int>(place.rank),
                                static_cast<int>(place.ranks),
                                {},
                                shared_->abort_patience / 2};
  std::memcpy(&ours.id, place.id.data(), sizeof(ours.id));
  const Deadline deadline = after(place.timeout);
  return run(place.timeout, [ours, deadline](Shared& shared) -> Status {
    if (shared.group) return fail(Errc::invalid_argument, "join: the ranks are joined already");
    CKPT_TRY(shared.group,
             device::NcclGroup::open(*shared.library, *shared.driver, ours, deadline));
    return {};
  });
}

Status GpuRanks::Impl::broadcast(const GpuBroadcast& asked) {
  const Deadline deadline = after(asked.timeout);
  const auto carry_out = [asked, deadline](Shared& shared) -> Status {
    if (!shared.group) return fail(Errc::unavailable, "broadcast: the ranks are not joined");
    shared.is_quiet = false;
    const device::NcclGroup::Work work{static_cast<int>(asked.root), asked.parts,
                                       static_cast<CUstream>(asked.after.handle)};
    Status done = shared.group->broadcast(work, deadline);
    shared.is_quiet = shared.group->is_quiet();
    return done;
  };
  if (asked.root > INT_MAX) return fail(Errc::invalid_argument, "broadcast: no such rank");
  return run(asked.timeout, carry_out);
}

Status GpuRanks::Impl::close(milliseconds timeout) {
  if (thread_->is_lost()) return fail(Errc::unavailable, "an earlier call has not returned");
  const Deadline deadline = after(timeout);
  return run(timeout, [deadline](Shared& shared) -> Status {
    if (!shared.group) return {};
    Status closed = shared.group->close(deadline);
    shared.group.reset();
    return closed;
  });
}

std::string GpuRanks::Impl::library_name() const {
  return fmt::format("{} (NCCL {})", shared_->library->name, shared_->library->version_text());
}

Result<GpuRanks> GpuRanks::open(const Options& options) {
  CKPT_CHECK(check_environment());
  auto shared = std::make_shared<Shared>();
  CKPT_TRY(shared->driver, device::CudaDriver::open());
  CKPT_TRY(shared->library, device::NcclLibrary::open(options.library));
  shared->gpu = options.gpu;
  shared->abort_patience = options.abort_patience;
  if (options.gpu < 0 || options.gpu >= shared->driver->device_count)
    return fail(Errc::unsupported, fmt::format("there is no GPU {}", options.gpu));
  CKPT_TRY(auto thread, device::CallThread::start("ckpt-nccl"));
  return GpuRanks(std::make_unique<Impl>(std::move(shared), std::move(thread)));
}

GpuRanks::GpuRanks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuRanks::GpuRanks(GpuRanks&&) noexcept = default;
GpuRanks& GpuRanks::operator=(GpuRanks&&) noexcept = default;
GpuRanks::~GpuRanks() = default;

Result<GpuRanks::Id> GpuRanks::make_id(milliseconds timeout) {
  return impl_->make_id(timeout);
}
Status GpuRanks::join(const Place& place) {
  return impl_->join(place);
}
Status GpuRanks::broadcast(const GpuBroadcast& broadcast) {
  return impl_->broadcast(broadcast);
}
Status GpuRanks::close(milliseconds timeout) {
  return impl_->close(timeout);
}
bool GpuRanks::is_quiet() const {
  return impl_->is_quiet();
}
std::string GpuRanks::library_name() const {
  return impl_->library_name();
}

}  // namespace ckpt
