// The stand-in for NCCL: its C functions over threads and processes of one host, on the stand-in
// driver of each process.
//
// Communicators do not block. A call only notes what is wanted; asking for the state makes it
// happen, later than one might hope. A broadcast runs in the order of its stream: the root's when
// all ranks have come, the others' when the root's has run. An all-gather runs when all have come,
// and moves nothing: only a bench calls it, for its rate. What NCCL leaves undefined counts as a
// violation.
//
// Locks: work of a stream runs under the driver's lock and takes ours, so ours is never held at a
// call of the driver.
#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/nccl_library.hpp"
#include "support/cuda_stand_in/control.hpp"
#include "support/nccl_stand_in/control.hpp"
#include "support/nccl_stand_in/shared_team.hpp"

namespace ckpt::test {

namespace {

using device::NcclConfig;
using device::NcclResult;
using device::NcclUniqueId;

constexpr auto invalid_argument = static_cast<NcclResult>(4);
constexpr auto remote_error = static_cast<NcclResult>(6);

struct NcclSettings {
  std::string fail;            // The function that fails; "state": a communicator does.
  std::string block;           // The function that does not return until let_go().
  std::uint64_t rank = ~0ull;  // For which rank; else for all.
  std::uint64_t nth = 1;       // Its so many'th call.
  std::uint64_t error = 3;     // It returns this.
  std::uint64_t version = 22703;
  std::uint64_t hang_join = 0;       // 1: joining never ends.
  std::uint64_t hang_broadcast = 0;  // 1: no broadcast ever runs.
  std::uint64_t stuck = 0;           // 1: abort does not end what runs.
  std::uint64_t tells_abort = 0;     // 1: the others learn of an abort.
  std::uint64_t corrupt = 0;         // The broadcast that arrives with a bit changed.
};

struct Comm;

constexpr int no_root = -1;  // Of an all-gather.

// Ticket: one rank's part of a broadcast in the order of its stream.
struct Ticket {
  Comm* comm = nullptr;
  std::size_t number = 0;  // Of its broadcasts.
  int root = 0;
  std::size_t bytes = 0;
  std::uint64_t address = 0;
};

struct Comm {
  std::unique_ptr<SharedTeam> team;
  int size = 0;
  int rank = 0;
  enum class Life { joined, finalized, destroyed, aborted } life = Life::joined;
  bool is_ready = false;   // All have joined.
  std::uint64_t busy = 0;  // So many questions until the newest call is done.
  NcclResult state = device::nccl_success;
  std::vector<const Ticket*> under_way;
  std::size_t issued = 0;
  CUstream_st* stream = nullptr;  // Held for what is under way.
};

struct Everything {
  NcclSettings settings;
  NcclCounts counts;
  std::map<std::string, std::uint64_t> calls;  // By function, of the rank that settings mean.
  std::vector<std::unique_ptr<Comm>> comms;    // Never forgotten, so that late use is seen.
  std::vector<std::unique_ptr<Ticket>> tickets;
  std::string violations;
  bool may_block = true;
};

std::mutex& mutex() {
  static std::mutex one;
  return one;
}
std::condition_variable& changed() {
  static std::condition_variable one;
  return one;
}
std::unique_ptr<Everything>& place() {
  static auto* one = new std::unique_ptr<Everything>(std::make_unique<Everything>());
  return *one;
}
Everything& all() {
  return *place();
}

thread_local int rank_here = -1;
thread_local int group_depth = 0;

struct Wanted {
  Comm* comm = nullptr;
  void* data = nullptr;
  std::size_t bytes = 0;
  int root = 0;
  CUstream_st* stream = nullptr;
};
thread_local std::vector<Wanted> wanted;

const StandInControl& driver() {
  static const auto* const control = [] {
    // In a bundle's test it lies elsewhere than where it was built.
    const char* const named = std::getenv("CKPT_CUDA_DRIVER");
    void* library =
        ::dlopen(named != nullptr ? named : CKPT_CUDA_STAND_IN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void* found = library != nullptr ? ::dlsym(library, "cuda_stand_in") : nullptr;
    if (found == nullptr) std::abort();
    return static_cast<const StandInControl*>(found);
  }();
  return *control;
}

void violate(const std::string& what) {
  all().violations += what + "\n";
}

bool is_meant(const std::string& name, const std::string& which) {
  const NcclSettings& settings = all().settings;
  const bool is_rank = settings.rank == ~0ull || static_cast<int>(settings.rank) == rank_here;
  return which == name && is_rank && ++all().calls[name] == settings.nth;
}

// Counts a call; says how it fails, or that it does not.
NcclResult enter(std::unique_lock<std::mutex>& lock, const char* name) {
  ++all().counts.calls;
  if (is_meant(name, all().settings.block)) {
    ++all().counts.blocked;
    changed().wait(lock, [] { return !all().may_block; });
  }
  if (is_meant(name, all().settings.fail)) return static_cast<NcclResult>(all().settings.error);
  return device::nccl_success;
}

Comm* living(device::NcclComm handle, const char* name) {
  auto* const comm = reinterpret_cast<Comm*>(handle);
  const auto is_it = [&](const auto& each) { return each.get() == comm; };
  const bool is_known = std::any_of(all().comms.begin(), all().comms.end(), is_it);
  if (!is_known || comm->life == Comm::Life::destroyed || comm->life == Comm::Life::aborted) {
    violate(std::string(name) + " of a communicator that is no more");
    return nullptr;
  }
  return comm;
}

bool is_busy(const Comm& comm) {
  return !comm.is_ready || comm.busy > 0;
}

// True if all that is under way may run now.
bool may_run(const Comm& comm) {
  if (all().settings.hang_broadcast != 0) return false;
  return std::all_of(comm.under_way.begin(), comm.under_way.end(), [&](const Ticket* ticket) {
    if (ticket->root != comm.rank && ticket->root != no_root)
      return comm.team->is_delivered(ticket->number);
    return comm.team->arrived(ticket->number) == static_cast<std::size_t>(comm.size);
  });
}

// Under the driver's lock, in the order of the stream.
void run_ticket(void* argument) {
  const std::lock_guard lock(mutex());
  const auto& ticket = *static_cast<Ticket*>(argument);
  if (ticket.comm->life == Comm::Life::aborted || ticket.root == no_root) return;
  SharedTeam& team = *ticket.comm->team;
  std::vector<std::byte> content(ticket.bytes);
  if (ticket.comm->rank == ticket.root) {
    driver().peek(ticket.address, content.data(), content.size());
    return team.deliver(ticket.number, content);
  }
  if (!team.is_delivered(ticket.number)) return violate("a broadcast ran before its root's");
  content = team.delivered(ticket.number, ticket.bytes);
  driver().poke(ticket.address, content.data(), content.size());
}

// The streams that go on, by the caller, without our lock.
std::vector<CUstream_st*> progress(Comm& comm) {
  if (all().settings.hang_join == 0)
    comm.is_ready = comm.team->joined() == static_cast<std::size_t>(comm.size);
  if (comm.team->is_broken()) comm.state = remote_error;
  if (comm.busy > 0) --comm.busy;
  if (comm.stream == nullptr || !may_run(comm)) return {};
  comm.under_way.clear();
  return {std::exchange(comm.stream, nullptr)};
}

void let_run(const std::vector<CUstream_st*>& streams) {
  for (CUstream_st* stream : streams) driver().hold(stream, false);
}

Ticket* ticket_of(const Wanted& want) {
  Comm& comm = *want.comm;
  auto ticket = std::make_unique<Ticket>();
  ticket->comm = &comm;
  ticket->number = comm.issued++;
  ticket->root = want.root;
  ticket->bytes = want.bytes;
  ticket->address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(want.data));
  const auto arrival = comm.team->arrive(ticket->number, want.root, want.bytes);
  if (!arrival) violate("the ranks differ in a broadcast's size or root");
  const bool is_first = arrival && arrival->is_first;
  if (is_first && ++all().counts.broadcasts == all().settings.corrupt)
    comm.team->corrupt(ticket->number);
  comm.team->be_there(ticket->number);
  all().tickets.push_back(std::move(ticket));
  return all().tickets.back().get();
}

NcclResult join(device::NcclComm* handle, int ranks, const NcclUniqueId& id, int rank,
                const NcclConfig& config) {
  if (config.size != sizeof(NcclConfig) || config.magic != 0xcafebeef || config.blocking != 0 ||
      rank < 0 || rank >= ranks) {
    violate("a communicator that blocks, or without a place");
    return invalid_argument;
  }
  auto comm = std::make_unique<Comm>();
  comm->team = SharedTeam::open(std::string(id.bytes, ::strnlen(id.bytes, sizeof(id.bytes))));
  if (comm->team == nullptr) {
    violate("joined by an id that nobody made, or whose maker is gone");
    return invalid_argument;
  }
  comm->size = ranks;
  comm->rank = rank;
  comm->team->join();
  *handle = reinterpret_cast<device::NcclComm>(comm.get());
  all().comms.push_back(std::move(comm));
  ++all().counts.joins;
  ++all().counts.live;
  return device::nccl_in_progress;
}

// The calls of a group, with our lock; the tickets are queued without it.
std::vector<std::pair<CUstream_st*, Ticket*>> issue() {
  std::vector<std::pair<CUstream_st*, Ticket*>> tickets;
  for (const Wanted& want : wanted) {
    Ticket* const ticket = ticket_of(want);
    want.comm->under_way.push_back(ticket);
    want.comm->stream = want.stream;
    want.comm->busy = 2;
    tickets.emplace_back(want.stream, ticket);
  }
  wanted.clear();
  return tickets;
}

bool read_settings(const char* words, NcclSettings& settings) {
  const std::map<std::string, std::uint64_t NcclSettings::*> numbers = {
      {"rank", &NcclSettings::rank},           {"nth", &NcclSettings::nth},
      {"error", &NcclSettings::error},         {"version", &NcclSettings::version},
      {"hang_join", &NcclSettings::hang_join}, {"hang_broadcast", &NcclSettings::hang_broadcast},
      {"stuck", &NcclSettings::stuck},         {"tells_abort", &NcclSettings::tells_abort},
      {"corrupt", &NcclSettings::corrupt}};
  const std::string text = words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    const std::string value = equals < word.size() ? word.substr(equals + 1) : "";
    if (const auto found = numbers.find(name); found != numbers.end()) {
      settings.*(found->second) = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "fail") {
      settings.fail = value;
    } else if (name == "block") {
      settings.block = value;
    } else if (!word.empty()) {
      return false;
    }
  }
  return true;
}

bool control_reset(const char* words) {
  const std::lock_guard lock(mutex());
  auto fresh = std::make_unique<Everything>();
  if (!read_settings(words, fresh->settings)) return false;
  place() = std::move(fresh);
  return true;
}
NcclCounts control_counts() {
  const std::lock_guard lock(mutex());
  return all().counts;
}
const char* control_violations() {
  const std::lock_guard lock(mutex());
  return all().violations.c_str();
}
void control_let_go() {
  const std::lock_guard lock(mutex());
  all().may_block = false;
  changed().notify_all();
}

}  // namespace

}  // namespace ckpt::test

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

using namespace ckpt::test;  // NOLINT: the C functions below are the library's whole surface.
using ckpt::device::NcclComm;
using ckpt::device::NcclResult;
using ckpt::device::NcclUniqueId;

STAND_IN_EXPORT NcclResult ncclGetVersion(int* version) {
  std::unique_lock lock(mutex());
  *version = static_cast<int>(all().settings.version);
  return enter(lock, "ncclGetVersion");
}
STAND_IN_EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  std::unique_lock lock(mutex());
  std::memset(id, 0, sizeof(*id));
  const std::string words = SharedTeam::make();
  std::memcpy(id->bytes, words.data(), words.size());
  return enter(lock, "ncclGetUniqueId");
}
STAND_IN_EXPORT NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id,
                                                  int rank, ckpt::device::NcclConfig* config) {
  std::unique_lock lock(mutex());
  rank_here = rank;
  *comm = nullptr;
  const NcclResult result = enter(lock, "ncclCommInitRankConfig");
  return result != ckpt::device::nccl_success ? result : join(comm, ranks, id, rank, *config);
}
STAND_IN_EXPORT NcclResult ncclCommGetAsyncError(NcclComm handle, NcclResult* state) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclCommGetAsyncError");
  Comm* const comm = living(handle, "ncclCommGetAsyncError");
  if (result != ckpt::device::nccl_success || comm == nullptr)
    return comm == nullptr ? invalid_argument : result;
  const auto streams = progress(*comm);
  if (is_meant("state", all().settings.fail))
    comm->state = static_cast<NcclResult>(all().settings.error);
  const bool is_in_progress = comm->state == ckpt::device::nccl_success && is_busy(*comm);
  *state = is_in_progress ? ckpt::device::nccl_in_progress : comm->state;
  lock.unlock();
  let_run(streams);
  return result;
}
STAND_IN_EXPORT NcclResult ncclGroupStart() {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclGroupStart");
  if (result == ckpt::device::nccl_success) ++group_depth;
  return result;
}
STAND_IN_EXPORT NcclResult ncclBroadcast(const void* source, void* target, std::size_t count,
                                         ckpt::device::NcclType type, int root, NcclComm handle,
                                         CUstream_st* stream) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclBroadcast");
  Comm* const comm = living(handle, "ncclBroadcast");
  if (comm == nullptr) return invalid_argument;
  if (group_depth == 0) violate("a broadcast outside of a group");
  if (is_busy(*comm)) violate("a broadcast while another call is in progress");
  if (source != target || type != ckpt::device::nccl_uint8 || count == 0)
    violate("a broadcast that is not in place, of bytes");
  if (result == ckpt::device::nccl_success) wanted.push_back({comm, target, count, root, stream});
  return result;
}
STAND_IN_EXPORT NcclResult ncclAllGather(const void* source, void* target, std::size_t count,
                                         ckpt::device::NcclType type, NcclComm handle,
                                         CUstream_st* stream) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclAllGather");
  Comm* const comm = living(handle, "ncclAllGather");
  if (comm == nullptr) return invalid_argument;
  if (group_depth == 0) violate("an all-gather outside of a group");
  if (is_busy(*comm)) violate("an all-gather while another call is in progress");
  const std::size_t place = static_cast<std::size_t>(comm->rank) * count;
  if (source != static_cast<std::byte*>(target) + place || type != ckpt::device::nccl_uint8)
    violate("an all-gather that is not in place, of bytes");
  if (result == ckpt::device::nccl_success)
    wanted.push_back({comm, target, count, no_root, stream});
  return result;
}
STAND_IN_EXPORT NcclResult ncclGroupEnd() {
  std::unique_lock lock(mutex());
  if (group_depth == 0) violate("the end of a group that was not begun");
  group_depth = 0;
  const NcclResult result = enter(lock, "ncclGroupEnd");
  if (result != ckpt::device::nccl_success) wanted.clear();
  const auto tickets = issue();
  lock.unlock();
  for (const auto& [stream, ticket] : tickets) {
    driver().hold(stream, true);
    if (driver().launch(stream, run_ticket, ticket) != 0) return static_cast<NcclResult>(1);
  }
  return result != ckpt::device::nccl_success ? result : ckpt::device::nccl_in_progress;
}
STAND_IN_EXPORT NcclResult ncclCommFinalize(NcclComm handle) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclCommFinalize");
  Comm* const comm = living(handle, "ncclCommFinalize");
  if (comm == nullptr) return invalid_argument;
  if (is_busy(*comm) || comm->life == Comm::Life::finalized)
    violate("finalized while busy, or twice");
  if (result != ckpt::device::nccl_success) return result;
  comm->life = Comm::Life::finalized;
  comm->busy = 2;
  return ckpt::device::nccl_in_progress;
}
STAND_IN_EXPORT NcclResult ncclCommDestroy(NcclComm handle) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclCommDestroy");
  Comm* const comm = living(handle, "ncclCommDestroy");
  if (comm == nullptr) return invalid_argument;
  if (is_busy(*comm) || comm->life != Comm::Life::finalized)
    violate("destroyed before it was finalized");
  comm->life = Comm::Life::destroyed;
  ++all().counts.destroys;
  --all().counts.live;
  return result;
}
STAND_IN_EXPORT NcclResult ncclCommAbort(NcclComm handle) {
  std::unique_lock lock(mutex());
  const NcclResult result = enter(lock, "ncclCommAbort");
  Comm* const comm = living(handle, "ncclCommAbort");
  if (comm == nullptr) return invalid_argument;
  if (group_depth > 0) violate("aborted within a group");
  comm->life = Comm::Life::aborted;
  ++all().counts.aborts;
  --all().counts.live;
  if (all().settings.tells_abort != 0) comm->team->break_up();
  CUstream_st* const stream = all().settings.stuck != 0 ? nullptr : comm->stream;
  lock.unlock();
  if (stream != nullptr) driver().hold(stream, false);
  return result;
}
STAND_IN_EXPORT const char* ncclGetErrorString(NcclResult) {
  return "an error of the stand-in";
}
STAND_IN_EXPORT const char* ncclGetLastError(NcclComm) {
  return "";
}
STAND_IN_EXPORT const NcclControl nccl_stand_in = {control_reset, control_counts,
                                                   control_violations, control_let_go};
