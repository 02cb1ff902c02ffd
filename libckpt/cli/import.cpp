#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "arena/arena_limits.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/import_write.hpp"
#include "cli/memory_step.hpp"
#include "cli/signal_watch.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/workplace.hpp"
#include "client/option_fields.hpp"

namespace ckpt::cli {

namespace {

// By default, the name of the directory.
Result<std::string> job_of(const ImportOptions& given) {
  std::filesystem::path to = given.to;
  if (!to.has_filename()) to = to.parent_path();
  Options words;
  words.job = given.job.empty() ? to.filename().string() : given.job;
  words.save_storage_interval = Interval();  // Nothing is trained here.
  const client::OptionProblem problem = client::find_problem(words);
  if (problem.name.empty()) return words.job;
  return fail(
      Errc::invalid_argument,
      fmt::format("import as job \"{}\": it {}; choose one by --job", words.job, problem.text));
}

// Files of a checkpoint that was exported without --strip have the prefix already.
std::string describe_prefix(const std::string& prefix, const ImportSource& source) {
  const std::string twice = prefix + prefix;
  const auto doubled = std::ranges::find_if(source.tensors, [&](const ImportTensor& tensor) {
    return tensor.spec.name.starts_with(twice);
  });
  if (doubled == source.tensors.end())
    return fmt::format("Each name got \"{}\" before it (--prefix).\n", printable(prefix));
  return fmt::format(
      "Each name got \"{}\" before it (--prefix), and some began so already: {}. If that is not "
      "meant, import again, into another directory, with --prefix ''.\n",
      printable(prefix), printable(doubled->spec.name));
}

Outcome import_outcome(const ImportOptions& given, const ImportSource& source,
                       const std::string& job, const storage::PublishOutcome& published) {
  Outcome outcome;
  std::uint64_t bytes = 0;
  for (const ImportTensor& tensor : source.tensors)
    if (tensor.spec.alias_of.empty()) bytes += tensor.bytes.bytes;
  const std::string path = os::join(given.to, published.name);
  outcome.json = {{"from", given.from},
                  {"to", path},
                  {"job", job},
                  {"step", given.step},
                  {"files", source.paths},
                  {"tensors", source.tensors.size()},
                  {"tensor_bytes", bytes},
                  {"prefix", given.prefix},
                  {"left_out", source.left_out}};
  outcome.text = fmt::format("{}: {} of {} from {}, as job {}\n", printable(path),
                             counted(std::to_string(source.tensors.size()), "tensor"),
                             arena::human_bytes(bytes),
                             counted(std::to_string(source.paths.size()), "file"), printable(job));
  if (source.left_out > 0)
    outcome.text += fmt::format("Left out: {} that {} no tensor.\n",
                                counted(std::to_string(source.left_out), "value"),
                                source.left_out == 1 ? "is" : "are");
  if (!given.prefix.empty()) outcome.text += describe_prefix(given.prefix, source);
  return outcome;
}

}  // namespace

Result<Outcome> import_tensors(const ImportOptions& given) {
  if (given.to.empty())
    return fail(Errc::invalid_argument, "import: TO is empty: name a directory");
  CKPT_CHECK(refuse_two_places(given.to, "import to"));
  CKPT_TRY(const std::string job, job_of(given));
  Workplace workplace;
  CKPT_CHECK(refuse_above_runs(workplace, "import", given.to));
  CKPT_TRY(const std::shared_ptr<ImportSource> source,
           workplace.run(open_import(workplace.files(), given.from, given.prefix)));
  std::uint64_t bytes = 0;
  for (const ImportTensor& tensor : source->tensors) bytes += tensor.bytes.bytes;
  ImportOrder order;
  order.job = job;
  order.step = Step{given.step};
  order.prefix = given.prefix;
  order.fresh_run = {random_from_system(), random_from_system()};
  order.attempt = random_from_system();
  order.chunk_bytes = default_chunk_bytes;
  const SignalWatch watch;
  order.is_cancelled = SignalWatch::has_signal;
  std::optional<Progress> progress(std::in_place, bytes, !given.json);
  order.written = [&](std::uint64_t more) { progress->add(more); };
  const storage::Site site = workplace.site(given.to);
  const auto published = workplace.run(write_import(site, source, std::move(order)));
  progress.reset();
  if (!published) return fail(Error(published.error()));
  return import_outcome(given, *source, job, *published);
}

}  // namespace ckpt::cli
