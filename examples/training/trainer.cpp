// ckpt_example_trainer: one rank of a deterministic training job that checkpoints with libckpt.
//
// It may be killed at any moment and started again with the same arguments; its final weights are
// then those of an uninterrupted run, bit for bit. It may also go on with another number of ranks,
// which adds up the same gradients in another order. Exit codes: 0 done, 1 bad arguments, 2 libckpt
// failed, 3 another rank is gone (the job starts all ranks again).
#include <CLI/CLI.hpp>
#include <chrono>
#include <ckpt/ckpt.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "examples/training/exchange.hpp"
#include "examples/training/model.hpp"

namespace {

constexpr int exit_arguments = 1;
constexpr int exit_libckpt = 2;
constexpr int exit_peer_gone = 3;

struct Settings {
  ckpt::Options checkpoints;
  example::ModelOptions model;
  example::ExchangeOptions exchange;
  std::string nodes;
  std::string save_mem_interval = "1";
  std::string save_storage_interval;
  std::uint64_t steps = 100;
  std::uint64_t step_ms = 0;
  std::string report;
  std::string weights;
  bool no_checkpoints = false;
  bool fresh = false;
};

// One JSON object per line, written at once, so that the last line shows where a kill hit.
class Report {
 public:
  explicit Report(const std::string& path) {
    if (path.empty()) return;
    file_.open(path, std::ios::app);
    if (!file_) std::cerr << "cannot write the report " << path << "\n";
  }
  void write(const std::string& line) {
    if (file_.is_open()) file_ << line << std::endl;
  }

 private:
  std::ofstream file_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') out += '\\';
    out += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return out + "\"";
}

std::string digest_of(const example::Model& model) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(model.digest()));
  return digits;
}

std::string number_or_null(const std::optional<ckpt::Step>& step) {
  return step ? std::to_string(ckpt::number(*step)) : "null";
}

const char* name_of(ckpt::SaveOutcome outcome) {
  switch (outcome) {
    case ckpt::SaveOutcome::not_due:
      return "not_due";
    case ckpt::SaveOutcome::started:
      return "started";
    case ckpt::SaveOutcome::skipped_no_slot:
      return "skipped_no_slot";
    case ckpt::SaveOutcome::skipped_unavailable:
      return "skipped_unavailable";
    case ckpt::SaveOutcome::disabled:
      return "disabled";
    case ckpt::SaveOutcome::skipped_by_agreement:
      return "skipped_by_agreement";
  }
  return "unknown";
}

const char* name_of(ckpt::RestoreSource source) {
  switch (source) {
    case ckpt::RestoreSource::own_memory:
      return "own_memory";
    case ckpt::RestoreSource::peer_memory:
      return "peer_memory";
    case ckpt::RestoreSource::storage:
      return "storage";
  }
  return "unknown";
}

void define_options(CLI::App& app, Settings& settings) {
  ckpt::Options& options = settings.checkpoints;
  app.add_option("--job", options.job, "Name of the job")->required();
  app.add_option("--rank", options.rank, "This rank")->capture_default_str();
  app.add_option("--world", options.world_size, "Number of ranks")->capture_default_str();
  app.add_option("--nodes", settings.nodes, "A@host:port/domain,B@host:port");
  app.add_option("--node", options.node, "Which of the nodes this is");
  app.add_option("--incarnation", options.incarnation, "Of the list of nodes");
  app.add_option("--dir", options.dir, "Checkpoints on storage; none: memory only");
  app.add_option("--save-mem-interval", settings.save_mem_interval, "Steps, or a time as 60s")
      ->capture_default_str();
  app.add_option("--save-storage-interval", settings.save_storage_interval, "Steps, or a time");
  app.add_option("--max-ckpt-num", options.max_ckpt_num, "Checkpoints kept on storage; 0: all");
  app.add_option("--memory-budget", options.memory_budget, "Bytes of this node's memory");
  app.add_option("--replicas", options.replicas, "Copies, the own one included");
  app.add_option("--runtime-dir", options.runtime_dir, "Socket and log of the daemon");
  app.add_option("--daemon", options.daemon_path, "The ckptd to start where none runs");
  app.add_option("--secret-file", options.secret_file, "Shared by the nodes");
  app.add_flag("--embedded", options.embedded, "The daemon's engine in this process");

  app.add_option("--steps", settings.steps, "Train up to this step")->capture_default_str();
  app.add_option("--step-ms", settings.step_ms, "A step takes at least so long");
  app.add_option("--seed", settings.model.seed, "Of weights, data and dropout");
  app.add_option("--width", settings.model.width, "Of the hidden layers")->capture_default_str();
  app.add_option("--layers", settings.model.hidden_layers, "Hidden layers")->capture_default_str();
  app.add_option("--exchange", settings.exchange.address,
                 "host:port where rank 0 adds up the gradients; none: each rank trains alone");
  app.add_option("--report", settings.report, "Append JSON lines to this file");
  app.add_option("--weights", settings.weights, "Write the final weights to this file");
  app.add_flag("--fresh", settings.fresh, "Begin at step 0, whatever could be restored");
  app.add_flag("--no-checkpoints", settings.no_checkpoints, "Train only, for comparison");
}

ckpt::Status complete(Settings& settings) {
  ckpt::Options& options = settings.checkpoints;
  CKPT_TRY(options.save_mem_interval, ckpt::Interval::parse(settings.save_mem_interval));
  if (!settings.save_storage_interval.empty()) {
    CKPT_TRY(options.save_storage_interval, ckpt::Interval::parse(settings.save_storage_interval));
  }
  std::istringstream list(settings.nodes);
  for (std::string text; std::getline(list, text, ',');) {
    CKPT_TRY(ckpt::Node node, ckpt::Node::parse(text));
    options.nodes.push_back(std::move(node));
  }
  settings.exchange.rank = options.rank;
  settings.exchange.world = options.world_size;
  if (options.rank >= options.world_size)
    return ckpt::fail(ckpt::Errc::invalid_argument, "--rank must be below --world");
  if (!settings.exchange.address.empty()) {
    settings.model.rank = options.rank;
    settings.model.world = options.world_size;
  } else {
    settings.model.seed += options.rank;  // Alone, each rank trains a model of its own.
  }
  return {};
}

// Opens, registers, restores. Returns neither a Checkpointer nor an error if none was asked for.
ckpt::Result<std::optional<ckpt::Checkpointer>> open(const Settings& settings,
                                                     example::Model& model, Report& report) {
  if (settings.no_checkpoints) return std::optional<ckpt::Checkpointer>();
  CKPT_TRY(auto checkpointer, ckpt::Checkpointer::open(settings.checkpoints));
  for (example::NamedTensor& entry : model.tensors())
    CKPT_CHECK(checkpointer.add(std::move(entry.name), std::move(entry.tensor)));
  CKPT_CHECK(checkpointer.add_blob("progress", model.progress_bytes()));
  if (settings.fresh) return std::optional<ckpt::Checkpointer>(std::move(checkpointer));

  const auto restored = checkpointer.restore();
  std::ostringstream line;
  if (restored) {
    const double seconds = std::chrono::duration<double>(restored->took).count();
    line << R"({"event":"restored","step":)" << ckpt::number(restored->step) << R"(,"timeline":)"
         << restored->timeline << R"(,"saved_by":)" << restored->saved_by << R"(,"source":")"
         << name_of(restored->source) << R"(","source_name":)" << quoted(restored->source_name)
         << R"(,"seconds":)" << seconds << R"(,"bytes":)" << restored->bytes;
    if (restored->newest_seen) line << R"(,"newest_seen":)" << ckpt::number(*restored->newest_seen);
    line << "}";
    std::printf("rank %u: resumes after step %llu from %s (%.1f MB in %.3f s)\n",
                settings.checkpoints.rank,
                static_cast<unsigned long long>(ckpt::number(restored->step)),
                restored->source_name.c_str(), static_cast<double>(restored->bytes) / 1e6, seconds);
  } else if (restored.error().code() == ckpt::Errc::not_found) {
    line << R"({"event":"fresh","reason":)" << quoted(restored.error().message()) << "}";
    std::printf("rank %u: begins at step 0\n", settings.checkpoints.rank);
  } else {
    return ckpt::fail(restored.error());
  }
  std::fflush(stdout);
  report.write(line.str());
  return std::optional<ckpt::Checkpointer>(std::move(checkpointer));
}

// One step: gradients, then the update behind the guard, then the save. Its line in the report has
// the loss, and a digest of the weights that gave it. Fails only if another rank is gone. Failures
// of libckpt are logged, and training continues.
ckpt::Status train_one_step(example::Model& model, example::Exchange& exchange,
                            ckpt::Checkpointer* checkpointer, Report& report) {
  CKPT_CHECK(exchange.gather(model.weights(), model.share_ends()));
  const std::string weights = digest_of(model);
  float loss = model.compute_gradients();
  CKPT_CHECK(exchange.sum(std::span(&loss, 1)));
  CKPT_CHECK(exchange.sum(model.gradients()));

  std::string outcome = "none";
  ckpt::Stats stats;
  if (checkpointer != nullptr) {
    const ckpt::Status guarded = checkpointer->guard();
    if (!guarded) std::cerr << "guard: " << guarded.error().message() << "\n";
  }
  model.update();
  const std::uint64_t step = model.progress().step;
  if (checkpointer != nullptr) {
    const auto saved = checkpointer->save_checkpoint_if_needed(ckpt::Step{step});
    outcome = saved ? name_of(*saved) : saved.error().message();
    stats = checkpointer->stats();
  }
  std::ostringstream line;
  line.precision(std::numeric_limits<float>::max_digits10);
  line << R"({"event":"step","step":)" << step << R"(,"loss":)" << loss << R"(,"weights":")"
       << weights << R"(","save":)" << quoted(outcome) << R"(,"committed":)"
       << number_or_null(stats.committed) << R"(,"durable":)" << number_or_null(stats.durable)
       << "}";
  report.write(line.str());
  return {};
}

ckpt::Status finish(const Settings& settings, example::Model& model, example::Exchange& exchange,
                    Report& report) {
  CKPT_CHECK(exchange.gather(model.weights(), model.share_ends()));
  if (!settings.weights.empty()) {
    std::ofstream file(settings.weights, std::ios::binary | std::ios::trunc);
    const auto bytes = std::as_bytes(model.weights());
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file) return ckpt::fail(ckpt::Errc::io, "write the weights to " + settings.weights);
  }
  const std::string digest = digest_of(model);
  std::ostringstream line;
  line << R"({"event":"done","step":)" << model.progress().step << R"(,"digest":")" << digest
       << R"("})";
  report.write(line.str());
  std::printf("rank %u: done at step %llu, weights %s\n", settings.checkpoints.rank,
              static_cast<unsigned long long>(model.progress().step), digest.c_str());
  return {};
}

int say(int code, const ckpt::Error& error) {
  std::cerr << error.message() << "\n";
  return code;
}

int train(Settings& settings) {
  Report report(settings.report);
  example::Model model(settings.model);
  auto opened = open(settings, model, report);
  if (!opened) return say(exit_libckpt, opened.error());
  ckpt::Checkpointer* checkpointer = opened->has_value() ? &**opened : nullptr;
  auto exchange = example::Exchange::open(settings.exchange);
  if (!exchange) return say(exit_peer_gone, exchange.error());

  const std::uint64_t first = model.progress().step;
  while (model.progress().step < settings.steps) {
    const auto begin = std::chrono::steady_clock::now();
    const ckpt::Status trained = train_one_step(model, *exchange, checkpointer, report);
    if (!trained) return say(exit_peer_gone, trained.error());
    if (checkpointer != nullptr && first > 0 && model.progress().step == first + 1) {
      const ckpt::Status told = checkpointer->restored_ok(ckpt::Step{first});
      if (!told) std::cerr << "restored_ok: " << told.error().message() << "\n";
    }
    std::this_thread::sleep_until(begin + std::chrono::milliseconds(settings.step_ms));
  }
  const ckpt::Status finished = finish(settings, model, *exchange, report);
  if (!finished) return say(exit_peer_gone, finished.error());
  if (checkpointer != nullptr) {
    const ckpt::Status closed = checkpointer->close();
    if (!closed) return say(exit_libckpt, closed.error());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of a deterministic training job that checkpoints with libckpt.");
  Settings settings;
  define_options(app, settings);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_arguments;
  }
  const ckpt::Status completed = complete(settings);
  if (!completed) return say(exit_arguments, completed.error());
  return train(settings);
}
