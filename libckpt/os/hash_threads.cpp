#include "os/hash_threads.hpp"

namespace ckpt::os {

Task<void> HashThreads::run(std::function<void()> work) {
  std::function<Status()> job = [work = std::move(work)] {
    work();
    return Status();
  };
  auto done = co_await threads_.run<void>(std::move(job));
  co_return done;
}

}  // namespace ckpt::os
