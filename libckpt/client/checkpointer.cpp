#include <ckpt/checkpointer.hpp>
#include <memory>
#include <utility>

#include "base/log.hpp"
#include "client/checkpointer_impl.hpp"
#include "client/session_link.hpp"

namespace ckpt {

using client::deadline_after;

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;

Checkpointer& Checkpointer::operator=(Checkpointer&& other) noexcept {
  if (this == &other) return *this;
  Checkpointer old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

Checkpointer::~Checkpointer() {
  // In a fork there are no threads to join and no daemon to leave. A call under way means that the
  // process ends: a handler that interrupted the call, or another thread, called exit(). Such a
  // call never releases its locks. The end of the process cleans up.
  if (impl_ && (impl_->is_forked() || impl_->is_in_call())) (void)impl_.release();
}

Result<std::unique_ptr<Checkpointer::Impl>> Checkpointer::Impl::open(Options options) {
  return client::without_exceptions<
      Result<std::unique_ptr<Impl>>>([&]() -> Result<std::unique_ptr<Impl>> {
    CKPT_TRY(Options resolved, Options::resolve(std::move(options)));
    if (resolved.disable) return std::make_unique<Impl>();
    // Two embedded engines would disturb each other in one directory.
    const std::string engine = resolved.embedded ? "in " + resolved.dir : resolved.runtime_dir;
    CKPT_TRY(auto claim, client::OpenClaim::take(engine, resolved.job, resolved.rank));
    if (!resolved.log_file_path.empty()) CKPT_CHECK(Log::open_file(resolved.log_file_path));
    if (resolved.nodes.size() > 1 && resolved.secret_file.empty())
      log_warning(
          "rank {} of job {}: no secret: no peer copies, and no checkpoints of a job of {} nodes; "
          "give all of them the same secret_file",
          resolved.rank, resolved.job, resolved.nodes.size());
    const auto deadline = deadline_after(resolved.open_deadline);
    CKPT_TRY(auto link, client::open_link(resolved, deadline));
    return std::make_unique<Impl>(std::move(claim), std::move(resolved), std::move(link));
  });
}

Result<Checkpointer> Checkpointer::open(Options options) {
  CKPT_TRY(auto impl, Impl::open(std::move(options)));
  return Checkpointer(std::move(impl));
}

Status Checkpointer::add(std::string name, TensorRef tensor) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.add(std::move(name), std::move(tensor));
  });
}

Status Checkpointer::remove(std::string_view name) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) { return session.remove(name); });
}

Status Checkpointer::add_blob(std::string name, std::span<std::byte> bytes) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.add_blob(std::move(name), bytes); });
}

Status Checkpointer::set_metric(std::string_view name, double value) {
  return Impl::call<Status>(impl_.get(), {},
                            [&](auto& session) { return session.set_metric(name, value); });
}

Result<SaveOutcome> Checkpointer::save_checkpoint_if_needed(Step step, Stream stream) {
  return Impl::call<Result<SaveOutcome>>(impl_.get(), SaveOutcome::disabled, [&](auto& session) {
    return session.save(step, stream, client::Due::by_policy);
  });
}

Result<SaveOutcome> Checkpointer::save(Step step, Stream stream,
                                       std::chrono::milliseconds slot_wait) {
  return Impl::call<Result<SaveOutcome>>(impl_.get(), SaveOutcome::disabled, [&](auto& session) {
    return session.save(step, stream, client::Due::always, client::deadline_after(slot_wait));
  });
}

Status Checkpointer::guard(Stream stream) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) { return session.guard(stream); });
}

Status Checkpointer::wait(Step step, Level level, std::chrono::milliseconds deadline) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.wait(step, level, deadline_after(deadline));
  });
}

Result<Restored> Checkpointer::restore(RestoreRequest request) {
  return Impl::call<Result<Restored>>(impl_.get(), client::disabled_restore(), [&](auto& session) {
    return session.restore(std::move(request));
  });
}

Status Checkpointer::start_fresh() {
  return Impl::call<Status>(impl_.get(), {}, [](auto& session) { return session.start_fresh(); });
}

Status Checkpointer::restored_ok(Step step) {
  return Impl::call<Status>(impl_.get(), {},
                            [&](auto& session) { return session.restored_ok(step); });
}

Stats Checkpointer::stats() const {
  if (!impl_ || impl_->is_disabled() || impl_->is_forked()) return {};
  const Impl::InCall in_call(*impl_);
  return impl_->session().stats();
}

Status Checkpointer::close(std::chrono::milliseconds deadline) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    Status closed = session.close(deadline_after(deadline));
    impl_->let_others_open();  // It is closed even if the flush failed.
    return closed;
  });
}

}  // namespace ckpt
