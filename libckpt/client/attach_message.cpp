#include "client/attach_message.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "os/process.hpp"

namespace ckpt::client {

namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// A message has zero for never. Options::resolve() replaces `automatic`; options that bypass it get
// `never`.
Interval for_message(const Interval& interval) {
  const bool is_none = interval.is_never() || interval.is_automatic();
  return is_none ? Interval{} : interval;
}

}  // namespace

std::string name_for_errors(const Options& options) {
  return fmt::format("rank {} of job {}", options.rank, options.job);
}

Result<wire::control::Attach> make_attach(const Options& options) {
  wire::control::Attach attach;
  CKPT_TRY(const auto identity, os::identify_process(::getpid()));
  attach.start_time = identity.start_ticks;
  attach.job = options.job;
  attach.dir = options.dir;
  attach.rank = options.rank;
  attach.world_size = options.world_size;
  attach.nodes = options.nodes;
  attach.node = options.node;
  if (attach.node.empty())
    attach.node = attach.nodes.size() == 1 ? attach.nodes.front().name : host_name();
  if (attach.nodes.empty()) attach.nodes.push_back(Node{attach.node, attach.node, ""});
  const auto is_ours = [&](const Node& node) { return node.name == attach.node; };
  if (std::none_of(attach.nodes.begin(), attach.nodes.end(), is_ours)) {
    return fail(Errc::invalid_argument,
                fmt::format("open {}: node \"{}\" is not in the job's list of nodes; name this "
                            "node with LIBCKPT_NODE",
                            name_for_errors(options), attach.node));
  }
  attach.incarnation = options.incarnation;
  attach.save_mem_interval = for_message(options.save_mem_interval);
  attach.save_storage_interval = for_message(options.save_storage_interval);
  attach.max_ckpt_num = options.max_ckpt_num;
  attach.keep_every = options.keep_every;
  attach.keep_best = options.keep_best;
  attach.best_metric = options.best_metric;
  attach.best_is_greatest = options.best_mode == Best::max;
  attach.replicas = options.replicas;
  attach.own_slots = options.own_slots;
  attach.flush_rate = options.flush_rate;
  attach.replica_rate = options.replica_rate;
  attach.skip_unchanged = options.skip_unchanged;
  attach.compression = options.compression;
  attach.secret_file = options.secret_file;
  return attach;
}

}  // namespace ckpt::client
