#include "bench/two_hosts.hpp"

#include <sched.h>

namespace bench {

namespace {

constexpr const char* near_in_namespace = "10.78.0.1";
constexpr const char* far_in_namespace = "10.78.0.2";

}  // namespace

TwoHosts::TwoHosts() {
  if (::unshare(CLONE_NEWNET) != 0) return;
  if (!make_cable()) {
    holder_.reset();
    succeeds({"ip", "link", "set", "lo", "up"});
    return;
  }
  near_ = near_in_namespace;
  far_ = far_in_namespace;
}

bool TwoHosts::make_cable() {
  const Command hold = {"unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"};
  holder_ = std::make_unique<Process>(Process::start(hold));
  holder_->read_line();
  const std::string pid = std::to_string(holder_->pid());
  const std::string near = std::string(near_in_namespace) + "/24";
  const std::string far = std::string(far_in_namespace) + "/24";
  return succeeds({"ip", "link", "set", "lo", "up"}) &&
         succeeds({"ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                   pid}) &&
         succeeds({"ip", "addr", "add", near, "dev", "cable"}) &&
         succeeds({"ip", "link", "set", "cable", "up"}) &&
         succeeds(on_far({"ip", "addr", "add", far, "dev", "cable"})) &&
         succeeds(on_far({"ip", "link", "set", "lo", "up"})) &&
         succeeds(on_far({"ip", "link", "set", "cable", "up"}));
}

Command TwoHosts::on_far(const Command& command) const {
  if (!holder_) return command;
  Command there = {"nsenter", "--net", "--target", std::to_string(holder_->pid())};
  there.insert(there.end(), command.begin(), command.end());
  return there;
}

std::string TwoHosts::in_words() const {
  return holder_ ? "the network is a veth pair between two namespaces" : "the network is loopback";
}

}  // namespace bench
