#include "bench/stored.hpp"

#include <filesystem>

#include "bench/must.hpp"
#include "os/ring_file_system.hpp"
#include "storage/publish.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace bench {

using namespace ckpt;

namespace {

Task<std::string> flush_step(storage::Site site, flush::Flusher& flusher,
                             storage::ShardToWrite source, std::uint64_t attempt) {
  storage::PublishOrder order;
  order.job = source.record->job;
  order.run = source.record->run;
  order.at = source.record->id.at;
  CKPT_CO_TRY(order.work_name, co_await storage::make_work_directory(site, order.at, attempt));
  const storage::StepAttempt target(site, order.work_name);
  CKPT_CO_TRY(const auto flushed, co_await flusher.write_shard(std::move(source), target));
  order.digests.push_back(flushed.digest);
  CKPT_CO_TRY(const auto published, co_await storage::publish(site, order));
  co_return published.name;
}

}  // namespace

Stored::Stored(Loop& loop, std::string directory)
    : loop_(loop), directory_(std::move(directory)), files_(os::make_file_system()) {
  std::filesystem::remove_all(directory_);
  site_ = std::make_unique<storage::Site>(*files_, *loop_.clock, directory_);
  flusher_ = std::make_unique<flush::Flusher>(*loop_.clock, flush::FlusherOptions());
  storage::RunOrder order;
  order.job = "bench";
  order.fresh_run = {1, 2};
  must(loop_.run(storage::open_run_directory(*site_, order)));
}

Stored::~Stored() {
  must(loop_.run(flusher_->stop(no_deadline)));
  std::filesystem::remove_all(directory_);
}

void Stored::flush(Shard& shard) {
  shard.become_step(++attempt_);
  published_ = must(loop_.run(
      flush_step(*site_, *flusher_, storage::ShardToWrite{shard.record, shard.spans()}, attempt_)));
}

void Stored::remove_steps() {
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    if (entry.path().filename() != storage::private_directory_name)
      std::filesystem::remove_all(entry.path());
}

}  // namespace bench
