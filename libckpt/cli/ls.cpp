#include <fmt/format.h>

#include <algorithm>

#include "arena/arena_limits.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/commands.hpp"
#include "cli/memory_step.hpp"
#include "cli/metrics_text.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "storage/place_check.hpp"
#include "storage/places.hpp"
#include "storage/run_catalog.hpp"

namespace ckpt::cli {

namespace {

Json checkpoint_json(const storage::Checkpoint& checkpoint) {
  return {{"name", checkpoint.name},
          {"timeline", checkpoint.at.timeline},
          {"step", number(checkpoint.at.step)},
          {"job", checkpoint.job},
          {"run", to_hex(checkpoint.run)},
          {"world_size", checkpoint.world_size},
          {"bytes", checkpoint.bytes},
          {"created_unix_seconds", checkpoint.created_unix_seconds},
          {"metrics", to_json(checkpoint.metrics)},
          {"abandoned", checkpoint.is_abandoned}};
}

// As a directory of a job has them. The name of the job is then printed once: it may be as long as
// a line.
bool is_of_one_job(const storage::Catalog& catalog) {
  const auto& all = catalog.checkpoints;
  return !all.empty() && std::ranges::all_of(all, [&](const storage::Checkpoint& each) {
    return each.job == all.front().job;
  });
}

Outcome listing(const std::string& directory, const storage::Catalog& catalog) {
  Outcome outcome;
  outcome.json["directory"] = directory;
  outcome.json["newest"] = nullptr;
  outcome.json["checkpoints"] = Json::array();
  const storage::Checkpoint* newest = storage::newest_living(catalog);
  if (newest != nullptr) outcome.json["newest"] = newest->name;
  Table table("lrrrrllll", {"NAME", "STEP", "TIMELINE", "RANKS", "SIZE", "CREATED (UTC)", "STATE",
                            "METRICS", "JOB"});
  const bool are_of_one_job = is_of_one_job(catalog);
  for (const storage::Checkpoint& checkpoint : catalog.checkpoints) {
    outcome.json["checkpoints"].push_back(checkpoint_json(checkpoint));
    table.add({checkpoint.name, std::to_string(number(checkpoint.at.step)),
               std::to_string(checkpoint.at.timeline), std::to_string(checkpoint.world_size),
               arena::human_bytes(checkpoint.bytes), human_date(checkpoint.created_unix_seconds),
               checkpoint.is_abandoned ? "abandoned" : "published", to_text(checkpoint.metrics),
               are_of_one_job ? "" : checkpoint.job});
  }
  if (table.is_empty()) outcome.text = fmt::format("No checkpoint in {}\n", printable(directory));
  if (are_of_one_job)
    outcome.text = fmt::format("job {}\n", printable(catalog.checkpoints.front().job));
  if (!table.is_empty()) outcome.text += table.to_text(0, text_width());
  outcome.json["rejected"] = to_json(catalog.rejected);
  outcome.text += describe(catalog.rejected);
  outcome.is_trouble = newest == nullptr || has_trouble(catalog.rejected);
  return outcome;
}

Result<Outcome> list_one(Workplace& workplace, const std::string& directory) {
  CKPT_TRY(const auto catalog, read_directory(workplace, directory));
  return listing(directory, catalog);
}

// A checkpoint that was named itself.
Result<Outcome> list_step(Workplace& workplace, std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  CKPT_TRY(const auto manifest, workplace.run(storage::read_manifest(workplace.site(path), ".")));
  storage::Catalog catalog;
  catalog.checkpoints.push_back(storage::describe(*manifest, name_of(path)));
  catalog.checkpoints.front().is_abandoned = is_abandoned_at(workplace, path, *manifest);
  Outcome outcome = listing(path, catalog);
  outcome.is_trouble = false;  // An abandoned one is what was asked for.
  outcome.text += "The files are not read: `ckpt verify` does that.\n";
  return outcome;
}

// A place, or run, that cannot be read is trouble; the others are listed all the same.
Outcome list_all(Workplace& workplace, const char* key,
                 const std::vector<std::string>& directories) {
  Outcome outcome;
  outcome.json[key] = Json::array();
  for (const std::string& directory : directories) {
    outcome.text += fmt::format("{}{}:\n", outcome.text.empty() ? "" : "\n", printable(directory));
    auto one = list_one(workplace, directory);
    outcome.is_trouble = outcome.is_trouble || !one || one->is_trouble;
    const std::string error = one ? "" : one.error().message();
    outcome.json[key].push_back(one ? one->json : Json{{"directory", directory}, {"error", error}});
    outcome.text += one ? one->text : printable(error) + "\n";
  }
  return outcome;
}

}  // namespace

Result<Outcome> list(const std::string& directory) {
  CKPT_CHECK(refuse_memory_path(directory, "list"));
  Workplace workplace;
  CKPT_TRY(const storage::Places places, storage::parse_places(directory));
  for (const std::string& place : places.directories()) CKPT_CHECK(bucket::check_path(place));
  if (places.second) return list_all(workplace, "places", places.directories());
  CKPT_TRY(const bool is_one, is_one_checkpoint(workplace, directory));
  if (is_one) return list_step(workplace, directory);
  const std::vector<std::string> runs = runs_at(workplace, directory);
  return runs.empty() ? list_one(workplace, directory) : list_all(workplace, "runs", runs);
}

}  // namespace ckpt::cli
