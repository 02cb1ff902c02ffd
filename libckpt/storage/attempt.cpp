#include "storage/attempt.hpp"

#include <fmt/format.h>

namespace ckpt::storage {

namespace {

std::string turn_folder(std::uint32_t turn) {
  return fmt::format("turn-{}", turn);
}

}  // namespace

std::string attempt_folder(const WorkDirectory& work) {
  return fmt::format("t{}.{:016x}", work.at.timeline, work.attempt);
}

std::optional<WorkDirectory> parse_attempt_folder(Step step, std::string_view folder) {
  // Its name is the end of the work directory's.
  const std::string name = fmt::format(".{}.{}", step_directory_name(step), folder);
  auto work = parse_work_directory(name);
  if (!work || work->at.step != step || attempt_folder(*work) != folder) return std::nullopt;
  return work;
}

std::string shard_folder(const WorkDirectory& work, std::uint32_t turn) {
  return turn == 0 ? attempt_folder(work) : attempt_folder(work) + "/" + turn_folder(turn);
}

std::string attempt_path(const Site& site, std::string_view work_name) {
  if (site.objects() == nullptr) return site.at(work_name);
  const auto work = parse_work_directory(work_name);
  // A name that is none of ours is refused where it is used.
  if (!work) return site.at(work_name);
  return os::join(site.at(step_directory_name(work->at.step)), attempt_folder(*work));
}

std::string path_in_attempt(os::FileSystem& files, std::string_view directory,
                            std::string_view name, std::uint32_t turn) {
  if (turn == 0 || files.objects(directory) == nullptr)
    return os::join(directory, turn_name(name, turn));
  return os::join(os::join(directory, turn_folder(turn)), name);
}

}  // namespace ckpt::storage
