// libckpt._native: the C++ client for Python: addresses and sizes go down, no tensor's bytes do.
//
// Every call that may wait lets go of the GIL. Nothing here knows a framework.
#include <fcntl.h>
#include <linux/fs.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ckpt/options.hpp>
#include <ckpt/published.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client.hpp"
#include "failure.hpp"
#include "gpu_ranks.hpp"
#include "options.hpp"
#include "tensor.hpp"
#include "tensor_probe.hpp"
#include "tree.hpp"

namespace nb = nanobind;
using ckpt::python::Client;
using ckpt::python::Places;
using ckpt::python::PythonGpuRanks;
using ckpt::python::Tree;

namespace {

// Exchanges two names in one atomic change. False: the file system cannot.
bool exchange(const std::string& one, const std::string& other) {
  const long done =
      ::syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  if (done == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  throw ckpt::python::Failure(ckpt::Errc::io,
                              "exchange " + one + " and " + other + ": " + std::strerror(errno));
}

// The checkpoints at a path, newest first, what is damaged there, why its history is lost.
nb::tuple published(const std::string& directory) {
  const ckpt::Published found = [&] {
    const nb::gil_scoped_release release;
    return ckpt::python::take(ckpt::list_published(directory));
  }();
  nb::list checkpoints;
  for (const ckpt::PublishedCheckpoint& each : found.checkpoints) {
    nb::dict described;
    described["path"] = each.path;
    described["job"] = each.job;
    described["step"] = number(each.step);
    described["timeline"] = each.timeline;
    described["world_size"] = each.world_size;
    described["is_abandoned"] = each.is_abandoned;
    described["created_unix_seconds"] = each.created_unix_seconds;
    nb::dict metrics;
    for (const auto& [name, value] : each.metrics) metrics[name.c_str()] = value;
    described["metrics"] = metrics;
    checkpoints.append(described);
  }
  return nb::make_tuple(checkpoints, nb::cast(found.damage), found.history_lost);
}

// For each rank of a checkpoint, its files by the names of their archives: the empty name has the
// tensors that are in none.
nb::list members(const std::string& checkpoint) {
  const auto found = [&] {
    const nb::gil_scoped_release release;
    return ckpt::python::take(ckpt::list_members(checkpoint));
  }();
  nb::list ranks;
  for (const std::vector<ckpt::MemberFile>& files : found) {
    nb::dict named;
    for (const ckpt::MemberFile& file : files) named[file.archive.c_str()] = file.path;
    ranks.append(named);
  }
  return ranks;
}

std::uint64_t slot_bytes(const std::string& directory, std::uint32_t rank) {
  const nb::gil_scoped_release release;
  return ckpt::newest_slot_bytes(directory, rank);
}

// Refuses a value that no session would take, of the options, the environment or the file.
void check_options(const nb::dict& options) {
  ckpt::Options given = ckpt::python::options_from(options);
  const nb::gil_scoped_release release;
  ckpt::python::take(ckpt::explain(given));
}

// All that the library has. They are asked for switched off: so no environment can be wrong.
std::vector<std::string> option_names() {
  ckpt::Options options;
  options.disable = true;
  std::vector<std::string> names;
  for (ckpt::OptionOrigin& option : ckpt::python::take(ckpt::explain(options)))
    names.push_back(std::move(option.name));
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
  ckpt::python::register_failures();
  module.def("exchange", &exchange, nb::arg("one"), nb::arg("other"));
  module.def("published", &published, nb::arg("directory"));
  module.def("members", &members, nb::arg("checkpoint"));
  module.def("slot_bytes", &slot_bytes, nb::arg("directory"), nb::arg("rank"));
  module.def("option_names", &option_names);
  module.def("larger_name_of", &ckpt::python::larger_name_of, nb::arg("tensor"));
  module.def("check_options", &check_options, nb::arg("options"));
  module.def("memory_of", &ckpt::python::memory_of, nb::arg("api").none(), nb::arg("tensor_type"),
             nb::arg("parts"));
  nb::class_<Places>(module, "Places")
      .def(nb::init<nb::object, const nb::list&>(), nb::arg("api").none(), nb::arg("tensors"))
      .def("moved", &Places::moved, nb::arg("tensors"));
  nb::class_<Tree>(module, "Tree")
      .def(nb::init<nb::object, nb::handle, nb::callable, nb::handle, std::string>(),
           nb::arg("api").none(), nb::arg("tensor_type"), nb::arg("text_of"), nb::arg("value"),
           nb::arg("text"))
      .def("is_known", &Tree::is_known)
      .def("find", &Tree::find, nb::arg("value"));
  nb::class_<PythonGpuRanks>(module, "GpuRanks")
      .def(nb::init<int, std::string, double>(), nb::arg("gpu"), nb::arg("library"),
           nb::arg("patience"))
      .def("make_id", &PythonGpuRanks::make_id, nb::arg("seconds"))
      .def("join", &PythonGpuRanks::join, nb::arg("rank"), nb::arg("ranks"), nb::arg("id"),
           nb::arg("seconds"))
      .def("broadcast", &PythonGpuRanks::broadcast, nb::arg("root"), nb::arg("parts"),
           nb::arg("stream"), nb::arg("seconds"))
      .def("close", &PythonGpuRanks::close, nb::arg("seconds"))
      .def("is_quiet", &PythonGpuRanks::is_quiet)
      .def("library_name", &PythonGpuRanks::library_name);
  nb::class_<Client>(module, "Client")
      .def(nb::init<const nb::dict&>(), nb::arg("options"))
      .def("update", &Client::update, nb::arg("tensors"), nb::arg("archives"))
      .def("set_blob", &Client::set_blob, nb::arg("name"), nb::arg("content"))
      .def("blob", &Client::blob, nb::arg("name"))
      .def("set_metric", &Client::set_metric, nb::arg("name"), nb::arg("value"))
      .def("prepare", &Client::prepare)
      .def("prepare_in_background", &Client::prepare_in_background)
      .def("is_due", &Client::is_due, nb::arg("step"))
      .def("give_up", &Client::give_up, nb::arg("step"), nb::arg("why"))
      .def("save", &Client::save, nb::arg("step"), nb::arg("stream") = 0, nb::arg("always") = false,
           nb::arg("wait") = 0.0)
      .def("guard", &Client::guard, nb::arg("stream") = 0)
      .def("hold", &Client::hold, nb::arg("holds"))
      .def("settle", &Client::settle, nb::arg("step"), nb::arg("problem"))
      .def("copied", &Client::copied)
      .def("wait", &Client::wait, nb::arg("step"), nb::arg("level"), nb::arg("seconds"))
      .def("restore", &Client::restore, nb::arg("step").none(), nb::arg("choose"),
           nb::arg("source") = nb::none())
      .def("restore_from", &Client::restore_from, nb::arg("path"), nb::arg("rank"),
           nb::arg("choose"))
      .def("restore_pieces", &Client::restore_pieces, nb::arg("path"))
      .def("watch_restores", &Client::watch_restores, nb::arg("watch").none())
      .def("start_fresh", &Client::start_fresh)
      .def("restored_ok", &Client::restored_ok, nb::arg("step"))
      .def("stats", &Client::stats)
      .def("status", &Client::status)
      .def("close", &Client::close, nb::arg("seconds"))
      .def("drop", &Client::drop);
}
