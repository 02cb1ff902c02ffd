#include "cli/doctor_checks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "arena/arena_limits.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/cgroup.hpp"
#include "cli/daemon_environment.hpp"
#include "cli/daemon_talk.hpp"
#include "cli/json_read.hpp"
#include "cli/workplace.hpp"
#include "client/daemon_start.hpp"
#include "daemon/daemon_options.hpp"
#include "device/gpus.hpp"
#include "os/environment_copy.hpp"
#include "os/landlock.hpp"
#include "os/limits.hpp"
#include "os/memory_available.hpp"
#include "os/path.hpp"
#include "os/ring_file_system.hpp"
#include "os/small_file.hpp"
#include "storage/catalog.hpp"
#include "storage/orphans.hpp"
#include "storage/place_check.hpp"
#include "storage/places.hpp"
#include "storage/run_directory.hpp"
#include "wire/secret.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::cli {

namespace {

using Grade = Finding::Grade;
using arena::human_bytes;

constexpr std::uint64_t descriptors_wanted = 4096;
constexpr Duration lookup_time = std::chrono::seconds(10);
// Less room than this holds no real checkpoint.
constexpr std::uint64_t free_bytes_wanted = 1 * GiB;

std::string limit_text(std::uint64_t bytes) {
  return bytes == os::unlimited ? "unlimited" : human_bytes(bytes);
}

Finding check_memory(const Options& options) {
  const auto available = os::memory_available();
  if (!available)
    return {"memory", Grade::trouble, available.error().text(),
            "name a size with the option memory_budget"};
  std::string text = fmt::format("{} available of {}", human_bytes(available->bytes),
                                 human_bytes(available->machine_bytes_total));
  if (available->cgroup_bytes != UINT64_MAX)
    text += fmt::format(" (the cgroup leaves {})", human_bytes(available->cgroup_bytes));
  const bool is_chosen = options.memory_budget != 0;
  const std::uint64_t budget = is_chosen ? options.memory_budget : available->bytes / 2;
  text += fmt::format("; a daemon started now may use {} ({})", human_bytes(budget),
                      is_chosen ? "memory_budget" : "half of it, by default");
  if (budget <= available->bytes) return {"memory", Grade::good, text, ""};
  return {"memory", Grade::trouble, text,
          "lower memory_budget below what is available, or free memory"};
}

Finding check_locked_memory() {
  const auto limit = os::limit_values(os::Limit::locked_memory);
  if (!limit) return {"locked memory", Grade::trouble, limit.error().text(), ""};
  const std::string text =
      fmt::format("limit {}, may be raised to {}; files are written without any",
                  limit_text(limit->soft), limit_text(limit->hard));
  return {"locked memory", Grade::good, text, ""};
}

Finding check_gpus() {
  auto described = device::describe_gpus();
  if (described) return {"GPUs", Grade::good, std::move(*described), ""};
  return {"GPUs", Grade::note, described.error().text(), ""};
}

Finding check_descriptors() {
  const auto limit = os::limit_values(os::Limit::open_files);
  if (!limit) return {"open files", Grade::trouble, limit.error().text(), ""};
  const std::string text = fmt::format("limit {}, may be raised to {}", limit->soft, limit->hard);
  if (limit->hard >= descriptors_wanted) return {"open files", Grade::good, text, ""};
  return {"open files", Grade::note, text,
          fmt::format("many ranks on one node need more: `ulimit -n {}`", descriptors_wanted)};
}

Finding check_io_uring() {
  const auto ring = os::make_ring_file_system();
  if (ring) return {"io_uring", Grade::good, "available", ""};
  return {"io_uring", Grade::note, ring.error().text(),
          "threads are used instead, which costs some bandwidth; containers forbid it by their "
          "seccomp profile"};
}

Finding check_bucket(Workplace& workplace, const std::string& path) {
  const Status proven =
      workplace.run(storage::prove_writable(workplace.site(path), random_from_system()));
  if (proven)
    return {"storage", Grade::good, path + ": can be written to, and keeps conditions", ""};
  return {"storage", Grade::trouble, fmt::format("{}: {}", path, proven.error().message()),
          "the daemon has the environment of the trainer that starts it: check AWS_ENDPOINT_URL, "
          "the region and the keys there"};
}

Finding check_place(Workplace& workplace, const std::string& directory) {
  if (bucket::is_bucket_path(directory)) return check_bucket(workplace, directory);
  const storage::Site site = workplace.site(directory);
  const auto there = workplace.run(storage::check_there(site));
  if (!there && there.error().code() == Errc::not_found) {
    const std::string parent = std::filesystem::path(directory).parent_path();
    if (workplace.run(storage::check_there(workplace.site(parent.empty() ? "." : parent))))
      return {"storage", Grade::note, directory + ": not there yet, a job will make it", ""};
    return {"storage", Grade::trouble, directory + ": neither it nor the one above is there",
            "make the directory above on every node, or correct the option dir"};
  }
  if (!there)
    return {"storage", Grade::trouble, fmt::format("{}: {}", directory, there.error().message()),
            "correct the option dir, or the rights on every node"};
  const Status written = workplace.run(storage::prove_writable(site, random_from_system()));
  if (!written)
    return {"storage", Grade::trouble,
            fmt::format("{} cannot be written: {}", directory, written.error().message()),
            "give this user write access, or name another directory"};
  const auto space = workplace.run(storage::room_in(site));
  if (!space) return {"storage", Grade::trouble, space.error().message(), ""};
  const std::string text =
      fmt::format("{}: {} free of {}", directory, human_bytes(space->bytes_free),
                  human_bytes(space->bytes_total));
  if (space->bytes_free >= free_bytes_wanted) return {"storage", Grade::good, text, ""};
  return {"storage", Grade::trouble, text, "free space, or keep fewer with max_ckpt_num"};
}

// Finds what a trainer would be refused for although the place can be written to: it is not the
// job's, or does not say whose it is.
std::optional<Finding> check_owner(Workplace& workplace, const std::string& job,
                                   const std::string& directory) {
  const storage::Site site = workplace.site(directory);
  const auto marker = workplace.run(storage::read_run_marker(site));
  if (marker && (job.empty() || marker->job == job)) return std::nullopt;
  if (marker)
    return Finding{"storage", Grade::trouble,
                   fmt::format("{} is the directory of job \"{}\", and the job here is \"{}\"",
                               directory, marker->job, job),
                   "correct the option job or dir: each job has a directory of its own"};
  if (marker.error().code() != Errc::not_found)
    return Finding{"storage", Grade::trouble,
                   storage::damaged_marker_error(directory, marker.error()).text(), ""};
  storage::CatalogOptions options;
  options.make_durable = false;
  const auto catalog = workplace.run(storage::read_catalog(site, options));
  if (!catalog) return std::nullopt;  // It is not there yet.
  const std::string orphans = storage::describe_orphans(*catalog, std::nullopt);
  if (orphans.empty()) return std::nullopt;
  return Finding{"storage", Grade::trouble, storage::orphans_error(directory, orphans).text(), ""};
}

std::vector<Finding> check_storage(Workplace& workplace, const Options& options) {
  const auto places = storage::parse_places(options.dir);
  if (!places) return {{"storage", Grade::trouble, places.error().text(), ""}};
  if (places->first.empty())
    return {{"storage", Grade::note, "no directory: checkpoints live in memory only",
             "set the option dir (LIBCKPT_DIR) to have them on storage, too; options that a "
             "trainer's code gives are not seen here"}};
  std::vector<Finding> findings;
  for (const std::string& directory : places->directories()) {
    findings.push_back(check_place(workplace, directory));
    if (findings.back().grade == Grade::trouble) continue;
    if (auto refused = check_owner(workplace, options.job, directory))
      findings.back() = std::move(*refused);
  }
  return findings;
}

Finding check_log(const Options& options) {
  const std::filesystem::path path = options.log_file_path;
  if (path.empty()) return {"log", Grade::good, "standard error", ""};
  const bool is_there = ::access(path.c_str(), F_OK) == 0;
  const auto opened = is_there ? path : path.parent_path();
  if (::access(opened.c_str(), W_OK) == 0 && !std::filesystem::is_directory(path))
    return {"log", Grade::good, path, ""};
  return {"log", Grade::trouble, fmt::format("{} cannot be written", path.string()),
          "make its directory, give this user write access, or correct log_file_path"};
}

Finding check_secret(const Options& options) {
  if (options.secret_file.empty()) {
    if (options.nodes.size() < 2)
      return {"secret", Grade::good, "none, and none is needed: the job has one node", ""};
    return {"secret", Grade::trouble,
            fmt::format("none: the job's {} nodes keep no copies for one another",
                        options.nodes.size()),
            "put 32 random bytes into a file of mode 0600, the same on every node, and name it "
            "with secret_file"};
  }
  const auto secret = wire::Secret::read_file(options.secret_file);
  if (secret) return {"secret", Grade::good, options.secret_file + " can be used", ""};
  return {"secret", Grade::trouble, secret.error().message(),
          "it must be a regular file of this user, mode 0600, of at least 16 bytes"};
}

// The options that a daemon would read from its trainer and, below that, its own environment.
daemon::Parsed daemon_as_started(const Options& options) {
  const std::string listen_at = client::listen_address(options);
  const char* const arguments[] = {"ckptd", "--listen", listen_at.c_str()};
  return daemon::parse_arguments(listen_at.empty() ? 1 : 3, arguments);
}

// Where this node's engine listens: the daemon's own option, else the list of nodes.
std::string peer_address(const Options& options) {
  std::string address;
  if (!options.embedded) address = daemon_as_started(options).options.listen;
  for (const Node& node : options.nodes) {
    if (address.empty() && node.name == options.node) address = node.address;
  }
  return address;
}

Finding check_port(Workplace& workplace, const Options& options, bool daemon_runs) {
  if (options.nodes.size() < 2)
    return {"port", Grade::good, "none is needed: the job has one node", ""};
  const std::string address = peer_address(options);
  if (address.empty())
    return {"port", Grade::trouble,
            fmt::format("node \"{}\" has no address in the list of nodes", options.node),
            "set the option node to this machine's name in nodes, written NAME@HOST:PORT"};
  wire::TcpNetwork network(workplace.executor(), workplace.clock());
  const Time deadline = workplace.clock().after(lookup_time);
  const auto listener = workplace.run(network.listen(address, deadline));
  if (listener) return {"port", Grade::good, address + " is free", ""};
  if (listener.error().code() == Errc::unavailable && daemon_runs)
    return {"port", Grade::good, address + " is in use, as it should be by the daemon", ""};
  return {"port", Grade::trouble, listener.error().message(),
          "choose an address of this machine and a port that nothing else uses"};
}

Finding check_program(const Options& options) {
  const std::string program = client::find_daemon(options, os::EnvironmentCopy::of_process());
  if (options.embedded)
    return {"program", Grade::note, "embedded: checkpoints die with the trainer's process", ""};
  if (const auto started = daemon_as_started(options); started.must_exit)
    return {"program", Grade::trouble, "ckptd would not start: " + started.text,
            "correct this in the daemon's environment or configuration, or the option it is from"};
  // A bare name is looked up in PATH when the daemon is started.
  const bool is_path = program.find('/') != std::string::npos;
  if (!is_path)
    return {"program", Grade::note, "ckptd is not beside the library; it is looked for in PATH",
            "install it, or name it with daemon_path"};
  if (::access(program.c_str(), X_OK) == 0) return {"program", Grade::good, program, ""};
  return {"program", Grade::trouble, program + " cannot be run", "correct daemon_path"};
}

// Running: the daemon of this user, as far as it answers.
struct Running {
  std::optional<pid_t> pid;  // 0: unknown. None: none runs.
  std::vector<std::string> confined_to;
};

Finding check_daemon(const Options& options, Running& running) {
  const auto answer = ask_daemon(options.runtime_dir, wire::control::AskStatus{}, answer_time);
  if (!answer) {
    const Errc code = answer.error().code();
    if (code == Errc::not_found)
      return {"daemon", Grade::good, "none runs now; a trainer starts one", ""};
    return {
        "daemon", Grade::trouble, answer.error().message(),
        code == Errc::invalid_argument ? "use a directory of mode 0700 that is yours alone" : ""};
  }
  running.pid = 0;  // It runs, even if it does not answer well.
  const auto status = parse_answer(*answer);
  if (!status) return {"daemon", Grade::trouble, status.error().message(), ""};
  const Json daemon = object_in(*status, "daemon");
  running.pid = static_cast<pid_t>(count_in(daemon, "pid"));
  running.confined_to = texts_in(daemon, "confined_to");
  const Json memory = object_in(*status, "memory");
  return {"daemon", Grade::good,
          fmt::format("ckptd {}, pid {}, in {}; its budget is {}, of which {} is used",
                      text_in(daemon, "version"), number_in(daemon, "pid"),
                      text_in(daemon, "runtime_dir"), human_bytes(count_in(memory, "budget_bytes")),
                      human_bytes(count_in(memory, "used_bytes"))),
          ""};
}

// A daemon that a trainer starts stays in the trainer's cgroup (docs/decisions/0011).
Finding check_cgroup(const Options& options, std::optional<pid_t> running) {
  if (options.embedded) return {"cgroup", Grade::good, "embedded: no daemon is started", ""};
  const std::string pid = running.value_or(0) > 0 ? std::to_string(*running) : "self";
  const std::string path = "/proc/" + pid + "/cgroup";
  const auto text = os::read_file(path, 64 * KiB);
  if (!text) return {"cgroup", Grade::note, text.error().message(), ""};
  const Cgroup group = parse_cgroup(*text, is_in_container(pid));
  const char* who = pid == "self" ? "a daemon that is started here" : "the daemon";
  if (group.dies_with.empty())
    return {"cgroup", Grade::good,
            fmt::format("{} is in {}, and dies with nothing else", who, group.path), ""};
  return {"cgroup", Grade::note,
          fmt::format("{} dies with {}; it is in {}", who, group.dies_with, group.path),
          group.advice};
}

// It finds buckets and keys by its own environment.
std::optional<Finding> check_environment(const Options& options, std::optional<pid_t> running) {
  if (options.embedded || running.value_or(0) <= 0) return std::nullopt;
  const auto text = os::read_file(fmt::format("/proc/{}/environ", *running), 4 * MiB);
  if (!text) return std::nullopt;
  const auto differing = differing_variables(*text, bucket::Environment::of_process());
  if (differing.empty()) return std::nullopt;
  return Finding{"environment", Grade::note,
                 fmt::format("that of the daemon, pid {}, is another one than here: {}", *running,
                             fmt::join(differing, ", ")),
                 "if buckets are used: `ckpt stop` ends it, and the next trainer starts one with "
                 "the trainer's environment"};
}

// Nothing: it lies below one of them, or is a bucket.
std::string find_outside(const Options& options, const std::vector<std::string>& confined_to) {
  const auto places = storage::parse_places(options.dir);
  if (!places || places->first.empty()) return {};
  const auto real = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(path, ignored).string() + "/";
  };
  for (const std::string& place : places->directories()) {
    if (bucket::is_bucket_path(place)) continue;
    const bool is_inside =
        std::ranges::any_of(confined_to, [&, here = real(place)](const std::string& directory) {
          return here.starts_with(real(directory));
        });
    if (!is_inside) return place;
  }
  return {};
}

// The daemon that runs counts, else the one that a trainer would start.
Finding check_landlock(const Options& options, const Running& running) {
  const int version = os::landlock_version();
  std::string text = version > 0 ? fmt::format("the kernel has version {}", version)
                                 : std::string("the kernel has none, or it is switched off");
  if (options.embedded) return {"landlock", Grade::good, text, ""};
  const bool runs = running.pid.has_value();
  std::vector<std::string> confined_to = running.confined_to;
  const auto wanted = daemon::parse_directories(daemon_as_started(options).options.confine_to);
  if (!runs && wanted) confined_to = *wanted;
  if (confined_to.empty())
    return {
        "landlock", Grade::good,
        text + (runs ? "; the daemon is not confined" : "; a daemon here would not be confined"),
        ""};
  text += fmt::format("; {} changes files only below {}",
                      runs ? "the daemon" : "a daemon that is started here",
                      fmt::join(confined_to, ", "));
  if (!runs && version < os::landlock_version_wanted)
    return {"landlock", Grade::trouble, text,
            fmt::format("it would not start, since it takes version {} (Linux 5.19): unset "
                        "LIBCKPT_CONFINE_TO",
                        os::landlock_version_wanted)};
  for (const std::string& directory : confined_to) {
    std::error_code ignored;
    if (!runs && !std::filesystem::is_directory(directory, ignored))
      return {"landlock", Grade::trouble,
              fmt::format("{}, and {} is no directory", text, directory),
              "make it, or correct LIBCKPT_CONFINE_TO: it must be there when the daemon starts"};
  }
  const std::string outside = find_outside(options, confined_to);
  if (outside.empty()) return {"landlock", Grade::good, text, ""};
  return {"landlock", Grade::trouble, fmt::format("{}, and {} lies outside", text, outside),
          "name it, or a directory above, in LIBCKPT_CONFINE_TO and start the daemon anew, or "
          "correct the option dir"};
}

}  // namespace

std::vector<Finding> examine(const Options& options) {
  Workplace workplace;
  Running running;
  std::vector<Finding> findings;
  findings.push_back(check_daemon(options, running));
  findings.push_back(check_program(options));
  findings.push_back(check_cgroup(options, running.pid));
  if (auto finding = check_environment(options, running.pid))
    findings.push_back(std::move(*finding));
  findings.push_back(check_memory(options));
  findings.push_back(check_locked_memory());
  findings.push_back(check_gpus());
  findings.push_back(check_descriptors());
  findings.push_back(check_io_uring());
  findings.push_back(check_landlock(options, running));
  for (Finding& finding : check_storage(workplace, options)) findings.push_back(std::move(finding));
  findings.push_back(check_log(options));
  findings.push_back(check_secret(options));
  findings.push_back(check_port(workplace, options, running.pid.has_value()));
  return findings;
}

}  // namespace ckpt::cli
