#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cli/command_table.hpp"
#include "cli/completion.hpp"
#include "client/option_fields.hpp"
#include "client/option_text.hpp"

namespace ckpt::cli {

namespace {

// The checks are those of a trainer's options, worded as the command line has them.
Result<storage::RetentionRule> rule_of(const GcArguments& given) {
  Options words = given.words;
  words.job = "gc";
  words.save_storage_interval = Interval();  // Nothing is saved here.
  const bool has_none = given.keep_every.empty() || given.keep_every == "none";
  auto every = client::parse_keep_intervals(has_none ? "" : given.keep_every);
  if (!every) return fail(std::move(every).error().context("--keep-every"));
  words.keep_every = std::move(every).value();
  CKPT_CHECK(words.set("best_mode", given.best_mode));
  if (words.max_ckpt_num == 0 && (!words.keep_every.empty() || words.keep_best > 0))
    return fail(
        Errc::invalid_argument,
        "--keep-every, --keep-best: give --keep as well; without it every checkpoint stays");
  const client::OptionProblem problem = client::find_problem(words);
  if (!problem.name.empty()) {
    std::string text = fmt::format("{} {}", problem.name, problem.text);
    for (const std::string word : {"keep_every", "keep_best", "best_metric", "best_mode"}) {
      std::string flag = "--" + word;
      std::ranges::replace(flag, '_', '-');
      for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word))
        text.replace(at, word.size(), flag);
    }
    return fail(Errc::invalid_argument, text);
  }
  return storage::RetentionRule{words.max_ckpt_num,
                                words.keep_every,
                                {words.keep_best, words.best_metric, words.best_mode == Best::max}};
}

void add_gc(CLI::App& app, Commands& commands, Arguments& arguments) {
  GcArguments& given = arguments.gc;
  CLI::App* command = subcommand(app, commands, arguments, "gc",
                                 "Remove old checkpoints, and what ended attempts left behind",
                                 [](const Arguments& all) -> Result<Outcome> {
                                   CKPT_TRY(auto rule, rule_of(all.gc));
                                   GcOptions options;
                                   options.dir = all.dir;
                                   options.rule = std::move(rule);
                                   options.has_every = all.gc.every_option->count() > 0;
                                   options.has_best = all.gc.best_option->count() > 0;
                                   options.dry_run = all.dry_run;
                                   options.runtime_dir = all.runtime_dir;
                                   return collect_garbage(options);
                                 });
  command->add_option("DIR", arguments.dir, "The job's directory or bucket (option `dir`)")
      ->required();
  command->add_option(
      "--keep", given.words.max_ckpt_num,
      "How many of the newest checkpoints stay (max_ckpt_num); default, and 0: all");
  given.every_option = command->add_option(
      "--keep-every", given.keep_every,
      "Steps that stay besides, such as '1000 until 10000, 5000', or none; default: those of the "
      "job's own keep_every");
  given.best_option = command->add_option(
      "--keep-best", given.words.keep_best,
      "How many of the best stay besides, by --best-metric; default: the job's own keep_best");
  command->add_option("--best-metric", given.words.best_metric,
                      "The name of a metric that was given with the saves");
  command->add_option("--best-mode", given.best_mode, "min or max")->capture_default_str();
  command->add_flag("--dry-run", arguments.dry_run, "Only show what would be removed");
  add_runtime_dir(command, arguments);
  command->footer(
      "Without --keep no checkpoint is removed. The job's own keep_every and keep_best hold:\n"
      "it records both in .libckpt/retention.json when it saves. --keep-every and --keep-best\n"
      "count instead where they are given. A job of an older version has recorded nothing, and\n"
      "the command says so. While the newest step lacks parts of tensors that no rank has saved,\n"
      "the last one that lacks less stays as well, and is named: all descriptions are read for\n"
      "that.\n\n"
      "An attempt is a hidden directory of a save or a removal; it counts as left when nothing\n"
      "in it has changed for an hour, and no daemon of this node works in DIR. In a bucket it\n"
      "is the objects and uploads of a save, and an upload counts for a day.\n\n"
      "Before a checkpoint goes, the newest of those that stay is read as a whole; if none of\n"
      "them is whole, nothing is removed. --dry-run reads it, too, and fails where the removal\n"
      "would. Files that libckpt did not make stay as they are. Each removal is logged in\n"
      ".libckpt/log.jsonl first. May run beside a training.\n\n"
      "Examples:\n  ckpt gc /ckpt/gpt2 --keep 3 --dry-run\n"
      "  ckpt gc /ckpt/gpt2 --keep 1 --keep-best 2 --best-metric loss");
}

void add_cp(CLI::App& app, Commands& commands, Arguments& arguments) {
  CopyOptions& given = arguments.copied;
  CLI::App* command =
      subcommand(app, commands, arguments, "cp",
                 "Copy a checkpoint into another directory or bucket", [](const Arguments& all) {
                   CopyOptions options = all.copied;
                   options.json = all.json;
                   options.runtime_dir = all.runtime_dir;
                   return copy(options);
                 });
  command
      ->add_option("FROM", given.from,
                   "One checkpoint (step-...), a directory of them, either in a bucket, too; or "
                   "memory:JOB: the newest step in a job's memory")
      ->required();
  command
      ->add_option("TO", given.to,
                   "The directory to copy into, made if its parent is there; or s3://bucket/prefix")
      ->required();
  add_runtime_dir(command, arguments);
  command->footer(
      "The copy is the same checkpoint: its run, its timelines and its bytes. So the job can go "
      "on\n"
      "in TO, and TO may get further checkpoints of the same run. For a directory it copies the\n"
      "newest whole checkpoint, and exits with 1 if a newer one is damaged. \"DIR, OTHER\" names "
      "both\n"
      "places of a run: a step whose copies are damaged in different chunks is put together, but\n"
      "no compressed file: `ckpt export` reads such a step. A new TO may not lie above other\n"
      "runs, nor inside the run that is copied. Each chunk is compared with its checksum while it\n"
      "is copied, and the copy appears under its name when all of it is synced. After an\n"
      "interruption or a full\n"
      "disk, the same command goes on: ranks that are there and whole are not copied again. Two\n"
      "copies of one checkpoint at a time do no harm; into a bucket, both succeed.\n"
      "From memory, training goes on meanwhile, and takes the memory of an older step when it\n"
      "needs it: then nothing is copied, and the same command takes the next step.\n"
      "Refused: a damaged source; a TO of another run; another checkpoint of that name, or one\n"
      "whose manifest is damaged: move that directory away first (mv, or your bucket's own tool).\n"
      "A step that a restore to an older one has abandoned can be copied by its name. In a TO\n"
      "without other checkpoints it is the newest step, and the job can go on from it there. So\n"
      "can a step beside a lost or damaged .libckpt/run.json or .libckpt/timelines.json.\n\n"
      "Examples:\n  ckpt cp /nvme/gpt2 /archive/gpt2\n"
      "  ckpt cp memory:gpt2 /archive/gpt2\n"
      "  ckpt cp /ckpt/gpt2/step-000000900 /archive/gpt2\n"
      "  ckpt cp /nvme/gpt2 s3://archive/gpt2");
}

Result<Outcome> import_given(const Arguments& given) {
  ImportOptions options = given.imported;
  options.json = given.json;
  options.from = given.paths;
  options.to = options.from.back();
  options.from.pop_back();
  if (options.from.empty())
    return fail(Errc::invalid_argument, "name what to import, and then the directory for it");
  return import_tensors(options);
}

void add_import(CLI::App& app, Commands& commands, Arguments& arguments) {
  ImportOptions& given = arguments.imported;
  CLI::App* command = subcommand(app, commands, arguments, "import",
                                 "Make a checkpoint of safetensors or torch files", import_given);
  // One list: the parser would give a list before another argument all there is.
  command
      ->add_option(
          "FROM...TO", arguments.paths,
          "Files, an index.json or a directory of a model, on disks or in buckets; last, a "
          "new directory, whose parent must be there, or s3://bucket/prefix")
      ->required();
  command->add_option("--job", given.job, "The job's name; default: the name of TO");
  command->add_option("--prefix", given.prefix, "What each tensor's name gets before it")
      ->capture_default_str();
  command->add_option("--step", given.step, "The checkpoint's step")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  command->footer(
      "Reads safetensors files, torch archives (torch.save of torch 1.6 or later) and the models\n"
      "of several such files that an index names. A torch archive gives only its tensors,\n"
      "by the keys on the way to them (model.layer.weight), and nothing in it is run: one that\n"
      "needs more than torch's own names for tensors is refused. Overlaps, sizes that do not fit\n"
      "and damaged entries are refused, too.\n\n"
      "With the prefix \"model.\", which is the default, a session of Python,\n"
      "libckpt.init(\"llama\", \"/ckpt/llama\"), fills a module by restore({\"model\": model}). In "
      "C++\n"
      "and C a restore goes by the names; --prefix '' leaves them as they are. Tensors of one\n"
      "storage and shape become tied.\n\n"
      "Examples:\n  ckpt import model.safetensors /ckpt/llama\n"
      "  ckpt import Llama-3-8B/ /ckpt/llama --job llama-3\n"
      "  ckpt import epoch3.pt /ckpt/old --prefix ''");
}

void add_completion(CLI::App& app, Commands& commands, Arguments& arguments) {
  CLI::App* command = subcommand(app, commands, arguments, "completion",
                                 "Print a script by which a shell completes these commands",
                                 [&app](const Arguments& all) -> Result<Outcome> {
                                   Outcome outcome;
                                   CKPT_TRY(outcome.text, completion_script(app, all.shell));
                                   outcome.is_verbatim = true;
                                   outcome.json = {{"shell", all.shell}, {"script", outcome.text}};
                                   return outcome;
                                 });
  command->add_option("SHELL", arguments.shell, "bash or zsh")->required();
  command->footer(
      "Completes commands, options and paths.\n\n"
      "Examples:\n  source <(ckpt completion bash)\n"
      "  ckpt completion zsh > ~/.zfunc/_ckpt    # with ~/.zfunc in $fpath");
}

}  // namespace

void add_tending_commands(CLI::App& app, Commands& commands, Arguments& arguments) {
  add_gc(app, commands, arguments);
  add_cp(app, commands, arguments);
  add_import(app, commands, arguments);
  add_completion(app, commands, arguments);
}

}  // namespace ckpt::cli
