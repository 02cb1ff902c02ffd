#include "support/nccl_stand_in/nccl_team.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "base/assert.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

const NcclControl& nccl_stand_in() {
  static const NcclControl* const control = [] {
    ::setenv("CKPT_NCCL_LIBRARY", CKPT_NCCL_STAND_IN_LIBRARY, 1);
    void* library = ::dlopen(CKPT_NCCL_STAND_IN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CKPT_ASSERT(library != nullptr);
    void* found = ::dlsym(library, "nccl_stand_in");
    CKPT_ASSERT(found != nullptr);
    return static_cast<const NcclControl*>(found);
  }();
  return *control;
}

NcclTeam::NcclTeam(const NcclTeamOptions& options) : options_(options) {
  const std::string words = fmt::format("devices={} {}", options.ranks, options.driver);
  trainer_ = std::make_unique<StandInTrainer>(words);
  CKPT_ASSERT(nccl_stand_in().reset(options.nccl.c_str()));
  auto library = device::NcclLibrary::open("");
  CKPT_ASSERT(library.has_value());
  library_ = std::move(*library);
  CKPT_ASSERT(library_->make_id(&id_) == device::nccl_success);
  groups_.resize(static_cast<std::size_t>(options.ranks));
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::vector<GpuPart>& parts = parts_.emplace_back();
    for (std::size_t part = 0; part < options.parts.size(); ++part) {
      const std::size_t bytes = options.parts[part];
      std::byte* const data = trainer_->allocate_on(rank, std::max<std::size_t>(bytes, 1));
      parts.push_back({data, bytes});
      if (bytes == 0) continue;
      const auto content = content_of(rank, part);
      stand_in().poke(reinterpret_cast<std::uintptr_t>(data), content.data(), bytes);
    }
  }
  contexts_ = stand_in().counts().retained_contexts;
}

std::vector<std::byte> NcclTeam::content_of(int rank, std::size_t part) const {
  return random_bytes(options_.parts[part], 100 * static_cast<std::uint64_t>(rank) + part + 1);
}

std::vector<Status> NcclTeam::on_each(const std::function<Status(int rank)>& work) const {
  std::vector<Status> results(groups_.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups_.size(); ++rank)
    threads.emplace_back([&, rank] { results[rank] = work(static_cast<int>(rank)); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

Status NcclTeam::open(int rank, device::Deadline deadline) {
  const device::NcclGroup::Place place{rank, rank, options_.ranks, id_, options_.abort_patience};
  auto opened = device::NcclGroup::open(*library_, trainer_->driver(), place, deadline);
  if (!opened) return fail(Error(opened.error()));
  groups_[static_cast<std::size_t>(rank)] = std::move(*opened);
  return {};
}

Status NcclTeam::broadcast(int rank, int root, device::Deadline deadline) {
  return group(rank)->broadcast({root, parts(rank), nullptr}, deadline);
}

Status NcclTeam::close(int rank, device::Deadline deadline) {
  return group(rank)->close(deadline);
}

std::vector<Status> NcclTeam::hand_round(int root) {
  auto results = on_each([&](int rank) -> Status {
    CKPT_CHECK(open(rank, in_a_minute()));
    return broadcast(rank, root, in_a_minute());
  });
  const auto closed = on_each([&](int rank) -> Status {
    return group(rank) != nullptr ? close(rank, in_a_minute()) : Status();
  });
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    if (results[rank] && !closed[rank]) results[rank] = fail(Error(closed[rank].error()));
  return results;
}

bool NcclTeam::all_have(int root) {
  for (int rank = 0; rank < options_.ranks; ++rank)
    for (std::size_t part = 0; part < options_.parts.size(); ++part)
      if (options_.parts[part] > 0 &&
          trainer_->read(static_cast<const std::byte*>(parts(rank)[part].data),
                         options_.parts[part]) != content_of(root, part))
        return false;
  return true;
}

std::string NcclTeam::violations() {
  return std::string(stand_in().violations()) + nccl_stand_in().violations();
}

}  // namespace ckpt::test
