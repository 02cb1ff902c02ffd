// Goal:   under kills, delays, cuts, flips, disk faults and skips the laws of the design hold, and
//         when the faults stop everything goes on by itself.
// Method: a World per seed. A seed that breaks a law is printed and replays exactly:
//             sim --seed 4711 --verbose
//         With --expect-caught the program is a mutant: some seed must break a law.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.hpp"
#include "sim/world.hpp"

namespace {

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t count = 20;
  bool is_verbose = false;
  bool expects_caught = false;
  bool retracts = false;
  bool is_elastic = false;
  bool is_stored = false;
  bool is_frozen = false;
  bool has_copies = false;
  bool has_pauses = false;
  bool has_slow_slots = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  if (const char* seeds = std::getenv("CKPT_SIM_SEEDS")) {
    arguments.count = std::strtoull(seeds, nullptr, 10);
  }
  for (int index = 1; index < argc; ++index) {
    const std::string word = argv[index];
    const bool has_value = index + 1 < argc;
    if (word == "--seeds" && has_value) {
      arguments.count = std::strtoull(argv[++index], nullptr, 10);
    } else if (word == "--seed" && has_value) {
      arguments.first = std::strtoull(argv[++index], nullptr, 10);
      arguments.count = 1;
    } else if (word == "--first" && has_value) {
      arguments.first = std::strtoull(argv[++index], nullptr, 10);
    } else if (word == "--verbose") {
      arguments.is_verbose = true;
    } else if (word == "--retract") {
      arguments.retracts = true;
    } else if (word == "--elastic") {
      arguments.is_elastic = true;
    } else if (word == "--stored") {
      arguments.is_stored = true;
    } else if (word == "--frozen") {
      arguments.is_frozen = true;
    } else if (word == "--copies") {
      arguments.has_copies = true;
    } else if (word == "--pauses") {
      arguments.has_pauses = true;
    } else if (word == "--slow-slots") {
      arguments.has_slow_slots = true;
    } else if (word == "--expect-caught") {
      arguments.expects_caught = true;
    } else {
      std::fprintf(stderr,
                   "usage: %s [--first N] [--seeds N] [--seed N] [--verbose] [--retract] "
                   "[--elastic [--stored]] "
                   "[--frozen] [--copies] [--pauses] [--slow-slots] [--expect-caught]\n",
                   argv[0]);
      std::exit(2);
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  ckpt::Log::set_level(arguments.is_verbose ? ckpt::LogLevel::debug : ckpt::LogLevel::error);
  if (!arguments.is_verbose) ckpt::Log::set_sink([](ckpt::LogLevel, std::string_view) {});
  ckpt::sim::Outcome total;
  std::uint64_t caught = 0;
  for (std::uint64_t seed = arguments.first; seed < arguments.first + arguments.count; ++seed) {
    const bool retracts = arguments.retracts || seed % 4 == 0;
    ckpt::sim::World world({seed, arguments.is_verbose, retracts, arguments.is_elastic,
                            arguments.is_stored, arguments.is_frozen, arguments.has_copies,
                            arguments.has_pauses, arguments.has_slow_slots});
    const ckpt::sim::Outcome outcome = world.run();
    total.launches += outcome.launches;
    total.restores += outcome.restores;
    total.commits += outcome.commits;
    total.kills += outcome.kills;
    total.captures += outcome.captures;
    total.publications += outcome.publications;
    total.mixed_restores += outcome.mixed_restores;
    total.bytes_unchanged += outcome.bytes_unchanged;
    caught += !outcome.violations.empty();
    if (arguments.expects_caught && caught > 0) {
      fmt::print("mutant caught by seed {}: {}\n", seed, outcome.violations.front());
      return 0;
    }
    for (const std::string& violation : outcome.violations) fmt::print("{}\n", violation);
  }
  fmt::print(
      "{} seeds: {} launches, {} restores ({} of ranks from memory and storage), {} captures, {} "
      "commits, {} publications, {} faults; {} seeds broke a law\n",
      arguments.count, total.launches, total.restores, total.mixed_restores, total.captures,
      total.commits, total.publications, total.kills, caught);
  if (arguments.expects_caught) {
    fmt::print("the mutant was NOT caught\n");
    return 1;
  }
  // A run in which nothing happened proves nothing.
  const bool has_storage = !arguments.is_elastic || arguments.is_stored;
  const bool is_stored = !has_storage || total.publications > 0;
  const bool is_mixed = !arguments.is_stored || total.mixed_restores > 0;
  const bool is_skipped = !arguments.is_frozen || total.bytes_unchanged > 0;
  const bool is_empty =
      total.restores == 0 || total.commits == 0 || !is_stored || !is_mixed || !is_skipped;
  return caught == 0 && !is_empty ? 0 : 1;
}
