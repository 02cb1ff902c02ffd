// Hosts: engines of several hosts over the simulated network and a fake clock, each with one rank
// of a job, and no memory for Slots: what the nodes agree on is looked at, not what they hold.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::test {

struct Hosts {
  using Names = std::vector<std::string>;  // By host.

  explicit Hosts(std::vector<std::string> all)
      : hosts(std::move(all)),
        clock(context),
        disk(1),
        files(disk, &clock),
        network(1),
        ranks(hosts.size()) {
    disk.put_directory("/scratch");
    for (const std::string& host : hosts) {
      fronts.push_back(network.add_node(host, clock));
      node::EngineOptions options;
      options.name = host;
      options.boot = 7 + fronts.size();
      options.memory_budget = MiB;
      engines.push_back(std::make_unique<node::Engine>(
          context.get_executor(), node::Seams{clock, memory, files, *fronts.back()}, options));
    }
  }
  ~Hosts() {
    for (const auto& engine : engines) {
      CHECK(finish(clock, start(context, engine->stop(std::chrono::seconds(5)))));
    }
    engines.clear();
    clock.advance(std::chrono::seconds(10));  // Sleeping coroutines see that it is over.
  }

  // The list has the hosts in this order, which decides who coordinates.
  Status attach(std::uint32_t rank, const Names& names, const std::vector<std::size_t>& order,
                const std::string& dir = {}) {
    node::AttachRequest request;
    request.job = "job";
    request.dir = dir;
    request.rank = rank;
    request.world_size = static_cast<std::uint32_t>(hosts.size());
    for (const std::size_t host : order)
      request.nodes.push_back({names[host], "", hosts[host] + ":1"});
    request.node = names[rank];
    request.incarnation = incarnation;
    request.secret = "the secret of the job, 32 bytes.";
    ranks[rank] = Rank();
    CKPT_TRY(const auto attached,
             finish(clock, start(context, engines[rank]->attach(request, ranks[rank]))));
    ranks[rank].session = attached.session;
    return {};
  }

  // All ask for the newest step, of which there is none. True: they have begun in one timeline.
  bool begin(const Names& names, const std::vector<std::size_t>& order,
             const std::string& dir = {}) {
    ++incarnation;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const Status attached = attach(rank, names, order, dir);
      REQUIRE((attached ? "" : attached.error().message()) == "");
      REQUIRE(engines[rank]->call(ranks[rank].session, control::AskRestore{1, std::nullopt}));
    }
    const auto is_same = [&](const Rank& rank) {
      return rank.answer && rank.answer->timeline == ranks[0].answer->timeline;
    };
    return pass_until(
        [&] { return ranks[0].answer && std::all_of(ranks.begin(), ranks.end(), is_same); });
  }

  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock.after(std::chrono::seconds(60));
    while (!claim() && clock.now() < limit && clock.advance_to_next()) {
    }
    return claim();
  }
  void detach_all() {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
      engines[rank]->detach(ranks[rank].session);
  }
  bool has_job(std::size_t host) const {
    return engines[host]->status_json().find("\"job\": \"job\"") != std::string::npos;
  }

  const std::vector<std::string> hosts;
  std::uint64_t incarnation = 0;
  asio::io_context context;
  FakeClock clock;
  NoMemory memory;
  MemoryDisk disk;
  MemoryFileSystem files;
  SimNetwork network;
  std::vector<std::unique_ptr<wire::Network>> fronts;
  std::vector<Rank> ranks;
  std::vector<std::unique_ptr<node::Engine>> engines;
};

}  // namespace ckpt::test
