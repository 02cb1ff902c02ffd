// TwoHosts: two ends of a cable: network namespaces, or loopback without root.
//
// The calling process moves into a namespace of its own, together with its later children. Both
// namespaces and the cable end with the processes in them.
//
// Lifetime: one in a process, made before any thread.
#pragma once

#include <memory>
#include <string>

#include "bench/process.hpp"

namespace bench {

class TwoHosts {
 public:
  TwoHosts();

  const std::string& near_address() const { return near_; }
  const std::string& far_address() const { return far_; }
  Command on_far(const Command& command) const;  // As it must be started to run there.
  std::string in_words() const;                  // For Harness::add_condition.

 private:
  bool make_cable();

  std::unique_ptr<Process> holder_;  // Keeps the far namespace. Null: loopback.
  std::string near_ = "127.0.0.1";
  std::string far_ = "127.0.0.1";
};

}  // namespace bench
