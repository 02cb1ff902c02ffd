#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "arena/arena_limits.hpp"
#include "base/random.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/commands.hpp"
#include "cli/export_lock.hpp"
#include "cli/export_plan.hpp"
#include "cli/export_write.hpp"
#include "cli/signal_watch.hpp"
#include "cli/size_text.hpp"
#include "cli/storage_read.hpp"
#include "cli/stored_step.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/workplace.hpp"
#include "format/dcp_metadata.hpp"

namespace ckpt::cli {

namespace {

constexpr const char* default_shard_size = "5GB";  // That of Hugging Face.

Result<ExportWish> wish_of(const ExportOptions& given) {
  ExportWish wish;
  wish.choice = {given.names, given.strip};
  wish.rank = given.rank;
  wish.copies_tied = given.copy_tied;
  wish.is_sharded = given.format == "hf";
  const bool is_dcp = given.format == "dcp";
  if (!wish.is_sharded && !is_dcp && given.format != "safetensors" && given.format != "torch")
    return fail(Errc::invalid_argument,
                fmt::format("--format \"{}\": it is safetensors (one file), torch (one file for "
                            "torch.load), hf (the files that Hugging Face loads) or dcp (the "
                            "directory that torch.distributed.checkpoint loads)",
                            given.format));
  wish.file_name = is_dcp ? std::filesystem::path(format::dcp_file_name)
                          : std::filesystem::path(given.out).filename();
  if (!wish.is_sharded && wish.file_name.empty())
    return fail(Errc::invalid_argument, fmt::format("export to \"{}\": name the file", given.out));
  if (!wish.is_sharded && !given.max_shard_size.empty())
    return fail(Errc::invalid_argument,
                fmt::format("--max-shard-size {}: only --format hf divides a model into files; "
                            "--format {} writes it whole",
                            given.max_shard_size, given.format));
  const bool has_size = !given.max_shard_size.empty();
  CKPT_TRY(wish.file_bytes_max, parse_size(has_size ? given.max_shard_size : default_shard_size));
  if (wish.file_bytes_max == 0)
    return fail(Errc::invalid_argument, "--max-shard-size: it cannot be 0");
  return wish;
}

ExportOrder order_of(const ExportOptions& given) {
  ExportOrder order;
  std::filesystem::path out = given.out;
  if (given.format == "hf" || given.format == "dcp") {
    if (!out.has_filename()) out = out.parent_path();  // Without the last slash.
    order.directory = out;
    order.makes_directory = true;
    order.is_whole_directory = true;
  } else {
    order.directory = out.parent_path().empty() ? "." : out.parent_path().string();
  }
  if (given.format == "torch") order.kind = ExportKind::torch;
  if (given.format == "dcp") order.kind = ExportKind::dcp;
  order.replaces = given.force;
  order.attempt = random_from_system();
  order.is_cancelled = SignalWatch::has_signal;
  return order;
}

// Those of the ranks that describe chosen tensors. Each rank is asked once.
Task<std::map<std::uint32_t, ItemForms>> read_forms(std::shared_ptr<StoredStep> step,
                                                    ExportWish wish) {
  std::map<std::uint32_t, ItemForms> forms;
  for (const gather::ListedTensor& tensor : step->tensors) {
    if (!is_chosen(wish.choice, tensor.name)) continue;
    const auto rank = describing_rank(tensor, wish);
    if (!rank || forms.contains(*rank)) continue;
    CKPT_CO_TRY(const auto record, co_await step->shards->whole_record(*rank));
    CKPT_CO_TRY(forms[*rank], co_await read_item_forms(*step->shards, record));
  }
  co_return forms;
}

// Files of a checkpoint are the owner's only; an exported one is like any other that a program
// writes. `made`: a directory that was not there before; empty: none.
void take_usual_mode(const std::vector<std::string>& paths, const std::string& made) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  for (const std::string& path : paths) (void)::chmod(path.c_str(), 0666 & ~mask);
  if (!made.empty()) (void)::chmod(made.c_str(), 0777 & ~mask);
}

bool is_taken(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Outcome export_outcome(const StoredStep& step, const ExportOptions& given, const ExportPlan& plan,
                       const std::vector<std::string>& paths) {
  Outcome outcome;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  Table table("lrr", {"FILE", "TENSORS", "SIZE"});
  Json files = Json::array();
  for (std::size_t index = 0; index < plan.files.size(); ++index) {
    const ExportFile& file = plan.files[index];
    bytes += file.bytes;
    tensors += file.tensors.size();
    files.push_back(
        {{"path", paths[index]}, {"tensors", file.tensors.size()}, {"tensor_bytes", file.bytes}});
    table.add({paths[index], std::to_string(file.tensors.size()), arena::human_bytes(file.bytes)});
  }
  const bool has_index = paths.size() > plan.files.size();
  outcome.json = {{"checkpoint", step.directory},
                  {"job", step.manifest->job},
                  {"step", number(step.manifest->at.step)},
                  {"world_size", step.manifest->world_size},
                  {"format", given.format},
                  {"tensors", tensors},
                  {"tensor_bytes", bytes},
                  {"left_out", plan.left_out},
                  {"files", std::move(files)}};
  outcome.json["index"] = has_index ? Json(paths.back()) : Json();
  outcome.json["tied"] = Json::object();
  if (has_index) table.add({paths.back(), "", ""});
  outcome.text = fmt::format("{}: {}, {}", title_of(*step.manifest),
                             counted(std::to_string(tensors), "tensor"), arena::human_bytes(bytes));
  if (plan.left_out > 0)
    outcome.text += fmt::format("; {} left out", counted(std::to_string(plan.left_out), "other"));
  outcome.text += "\n" + table.to_text(0, text_width());
  for (const Tied& tied : plan.tied) {
    outcome.json["tied"][tied.other] = tied.kept;
    outcome.text += fmt::format("tied: {} is {}, and is written once\n", printable(tied.other),
                                printable(tied.kept));
  }
  return outcome;
}

Result<Outcome> export_step(Workplace& workplace, const std::shared_ptr<StoredStep>& step,
                            const ExportOptions& given, const ExportWish& wish) {
  if (given.rank && *given.rank >= step->manifest->world_size)
    return fail(Errc::invalid_argument,
                fmt::format("--rank {}: {}", *given.rank, title_of(*step->manifest)));
  const auto explained = [&](Error error) -> Unexpected {
    return fail(explain(workplace, *step, std::move(error)));
  };
  const auto forms = workplace.run(read_forms(step, wish));
  if (!forms) return explained(forms.error());
  const ItemForms none;
  const FormsOf forms_of = [&](std::uint32_t rank) -> const ItemForms& {
    const auto found = forms->find(rank);
    return found == forms->end() ? none : found->second;
  };
  CKPT_TRY(const ExportPlan plan, plan_export(step->tensors, forms_of, wish));
  ExportOrder order = order_of(given);
  std::uint64_t bytes = 0;
  for (const ExportFile& file : plan.files) bytes += file.bytes;
  const SignalWatch watch;
  std::optional<Progress> progress(std::in_place, bytes, !given.json);
  const std::string made = is_taken(order.directory) ? "" : order.directory;
  std::optional<ExportLock> lock;
  if (!bucket::is_bucket_path(given.out)) {
    order.now = workplace.clock().wall_time();
    order.is_alone = [&lock, directory = order.directory] {
      return lock.emplace(directory).is_alone();
    };
    order.begin_writing = [&lock] { lock->share(); };
  }
  order.written = [&](std::uint64_t more) { progress->add(more); };
  auto paths =
      workplace.run(write_export(workplace.files(), *step->shards, plan, std::move(order)));
  progress.reset();
  if (!paths) return explained(paths.error());
  for (std::string& path : *paths) {  // As it was given.
    if (path.starts_with("./") && !given.out.starts_with("./")) path.erase(0, 2);
  }
  if (!bucket::is_bucket_path(given.out)) take_usual_mode(*paths, made);
  return export_outcome(*step, given, plan, *paths);
}

}  // namespace

Result<Outcome> export_tensors(const ExportOptions& given) {
  CKPT_CHECK(refuse_memory_path(given.out, "export to"));
  CKPT_CHECK(refuse_two_places(given.out, "export to"));
  CKPT_TRY(const ExportWish wish, wish_of(given));
  Workplace workplace;
  const ExportOrder order = order_of(given);
  CKPT_CHECK(refuse_in_checkpoint(workplace, "export to " + given.out, order.directory,
                                  order.is_whole_directory ? "" : wish.file_name));
  return use_stored_step(workplace, given.path, given.runtime_dir, [&](const auto& step) {
    return export_step(workplace, step, given, wish);
  });
}

}  // namespace ckpt::cli
