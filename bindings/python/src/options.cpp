#include "options.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "failure.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

// A number of steps, or a time as "15min".
Interval interval_from(nb::handle value) {
  if (value.is_none()) return {};
  if (nb::isinstance<nb::int_>(value)) return {nb::cast<std::uint64_t>(value), {}};
  return take(Interval::parse(nb::cast<std::string>(value)));
}

std::vector<Node> nodes_from(nb::handle value) {
  std::vector<Node> nodes;
  for (const auto& text : nb::cast<std::vector<std::string>>(value))
    nodes.push_back(take(Node::parse(text)));
  return nodes;
}

// A number of seconds, or a time as "15min".
std::chrono::milliseconds duration_from(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) {
    const Interval interval = interval_from(value);
    if (interval.steps == 0) return interval.time;  // Else it is no time, and no number either.
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(nb::cast<double>(value) * 1000));
}

template <class T>
bool set(T& field, nb::handle value) {
  field = nb::cast<T>(value);
  return true;
}

bool set_who(Options& options, const std::string& name, nb::handle value) {
  if (name == "job") return set(options.job, value);
  if (name == "dir") return set(options.dir, value);
  if (name == "rank") return set(options.rank, value);
  if (name == "world_size") return set(options.world_size, value);
  if (name == "node") return set(options.node, value);
  if (name == "incarnation") return set(options.incarnation, value);
  if (name == "runtime_dir") return set(options.runtime_dir, value);
  if (name == "daemon_path") return set(options.daemon_path, value);
  if (name == "secret_file") return set(options.secret_file, value);
  if (name == "interface") return set(options.interface, value);
  if (name == "port") return set(options.port, value);
  if (name != "nodes") return false;
  options.nodes = nodes_from(value);
  return true;
}

bool set_how(Options& options, const std::string& name, nb::handle value) {
  if (name == "max_ckpt_num") return set(options.max_ckpt_num, value);
  if (name == "memory_budget") return set(options.memory_budget, value);
  if (name == "replicas") return set(options.replicas, value);
  if (name == "own_slots") return set(options.own_slots, value);
  if (name == "blob_capacity") return set(options.blob_capacity, value);
  if (name == "copy_threads") return set(options.copy_threads, value);
  if (name == "gpu_copy_rate") return set(options.gpu_copy_rate, value);
  if (name == "embedded") return set(options.embedded, value);
  if (name == "log_file_path") return set(options.log_file_path, value);
  if (name == "disable") return set(options.disable, value);
  if (name == "checksum_in_copy") return set(options.checksum_in_copy, value);
  if (name == "save_mem_interval")
    options.save_mem_interval = interval_from(value);
  else if (name == "save_storage_interval")
    options.save_storage_interval = interval_from(value);
  else if (name == "open_deadline")
    options.open_deadline = duration_from(value);
  else if (name == "restore_deadline")
    options.restore_deadline = duration_from(value);
  else
    return false;
  return true;
}

}  // namespace

Options options_from(const nb::dict& given) {
  Options options;
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    try {
      if (set_who(options, name, value) || set_how(options, name, value)) continue;
    } catch (const nb::cast_error&) {
      throw Failure(Errc::invalid_argument, "option " + name + ": " +
                                                nb::cast<std::string>(nb::repr(value)) +
                                                " is of the wrong type");
    }
    throw Failure(Errc::invalid_argument, "there is no option " + name);
  }
  return options;
}

}  // namespace ckpt::python
