#include "agree/job_shape.hpp"

#include <fmt/format.h>

#include <span>

namespace ckpt::agree {

Digest members_digest(const JobShape& shape) {
  std::string text = fmt::format("{}\n{}\n{}\n", shape.job, shape.world_size, shape.replicas);
  for (const Node& node : shape.nodes) {
    text += fmt::format("{}\n{}\n{}\n", node.name, node.failure_domain, node.address);
  }
  return digest_of(std::as_bytes(std::span(text)));
}

std::string domain_of(const JobShape& shape, const std::string& node) {
  for (const Node& member : shape.nodes) {
    if (member.name == node && !member.failure_domain.empty()) return member.failure_domain;
  }
  return node;
}

}  // namespace ckpt::agree
