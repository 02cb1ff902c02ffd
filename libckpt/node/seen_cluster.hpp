// SeenCluster: the view of a job's nodes, kept from look to look.
//
// Few of many reports change between two looks. Only those are copied, and the index over all of
// them follows.
//
// Threads: the engine's.
#pragma once

#include <memory>
#include <vector>

#include "agree/cluster_view.hpp"

namespace ckpt::node {

class SeenCluster {
 public:
  // Brings the view's reports up to date with `reports`, our own first.
  void look_at(const agree::JobShape& shape, const std::vector<const format::NodeReport*>& reports);
  void forget() { index_.reset(); }  // The job has another shape.

  agree::ClusterView view;

 private:
  std::shared_ptr<agree::ReportIndex> index_;  // Over the view's reports; null: look at all.
};

}  // namespace ckpt::node
