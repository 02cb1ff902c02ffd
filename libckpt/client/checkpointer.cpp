// The shell around a TrainerSession: what is disabled does nothing, what was moved from or forked
// answers with an error, and no exception gets out.
#include <unistd.h>

#include <atomic>
#include <ckpt/checkpointer.hpp>
#include <exception>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "client/link.hpp"
#include "client/open_claim.hpp"
#include "client/trainer_session.hpp"

namespace ckpt {

namespace {

using client::deadline_after;

Unexpected disabled_restore() {
  return fail(Errc::not_found,
              "restore: libckpt is disabled (option disable), nothing is restored");
}

// What can still be thrown is the want of memory, here or in a library below.
template <class Answer, class Function>
Answer without_exceptions(Function function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return fail(Errc::exhausted, "out of memory");
  } catch (const std::exception& error) {
    return fail(Errc::io, error.what());
  } catch (...) {
    return fail(Errc::io, "an unknown exception");
  }
}

}  // namespace

class Checkpointer::Impl {
 public:
  Impl() = default;  // Disabled.
  Impl(client::OpenClaim claim, Options options, std::unique_ptr<client::Link> link)
      : process_(getpid()),
        claim_(std::move(claim)),
        session_(std::in_place, std::move(options), std::move(link)) {}

  bool is_disabled() const { return !session_.has_value(); }
  // A fork has a copy of everything but the threads: it must leave all of it alone.
  bool is_forked() const { return session_.has_value() && getpid() != process_; }
  client::TrainerSession& session() { return *session_; }
  void let_others_open() { claim_.reset(); }

  // While one exists, a call uses the session.
  class InCall {
   public:
    explicit InCall(Impl& impl) : calls_(impl.calls_) { ++calls_; }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;
    ~InCall() { --calls_; }

   private:
    std::atomic<int>& calls_;
  };
  bool is_in_call() const { return calls_ > 0; }

  // `function(session)`, unless there is a reason not to; `disabled` is the answer of a no-op.
  template <class Answer, class Function>
  static Answer call(Impl* impl, Answer disabled, Function function) noexcept {
    return without_exceptions<Answer>([&]() -> Answer {
      if (impl == nullptr)
        return fail(Errc::invalid_argument,
                    "this Checkpointer is not open (moved from, or never opened)");
      if (impl->is_disabled()) return std::move(disabled);
      if (impl->is_forked())
        return fail(
            Errc::invalid_argument,
            "this process was forked from the trainer, which alone may use the Checkpointer");
      const InCall in_call(*impl);
      return function(impl->session());
    });
  }

 private:
  pid_t process_ = 0;
  std::atomic<int> calls_{0};
  std::optional<client::OpenClaim> claim_;  // Outlives the session.
  std::optional<client::TrainerSession> session_;
};

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::Checkpointer(Checkpointer&&) noexcept = default;

Checkpointer& Checkpointer::operator=(Checkpointer&& other) noexcept {
  if (this == &other) return *this;
  Checkpointer old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

Checkpointer::~Checkpointer() {
  // In a fork there are no threads to join and no daemon to leave. And with a call under way the
  // process ends: exit() was called by a handler that interrupted it, or by another thread. What
  // the call uses, and its locks, it never lets go. The end of the process cleans up.
  if (impl_ && (impl_->is_forked() || impl_->is_in_call())) (void)impl_.release();
}

Result<Checkpointer> Checkpointer::open(Options options) {
  return without_exceptions<Result<Checkpointer>>([&]() -> Result<Checkpointer> {
    CKPT_TRY(Options resolved, Options::resolve(std::move(options)));
    if (resolved.disable) return Checkpointer(std::make_unique<Impl>());
    // In one directory two embedded engines would get in each other's way.
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
    return Checkpointer(
        std::make_unique<Impl>(std::move(claim), std::move(resolved), std::move(link)));
  });
}

Status Checkpointer::add(std::string name, TensorRef tensor) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.add(std::move(name), std::move(tensor));
  });
}

Status Checkpointer::add_archive(std::string name, std::span<const NamedTensor> entries) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.add_archive(std::move(name), entries);
  });
}

Status Checkpointer::remove(std::string_view name) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) { return session.remove(name); });
}

Status Checkpointer::add_blob(std::string name, std::span<std::byte> bytes) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.add_blob(std::move(name), bytes); });
}

Status Checkpointer::set_blob(std::string name, std::span<const std::byte> bytes) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.set_blob(std::move(name), bytes); });
}

std::optional<std::span<const std::byte>> Checkpointer::blob(std::string_view name) const {
  if (!impl_ || impl_->is_disabled() || impl_->is_forked()) return std::nullopt;
  const Impl::InCall in_call(*impl_);
  return impl_->session().blob(name);
}

Status Checkpointer::prepare() {
  return Impl::call<Status>(impl_.get(), {}, [](auto& session) { return session.prepare(); });
}

Status Checkpointer::prepare_in_background() {
  return Impl::call<Status>(impl_.get(), {},
                            [](auto& session) { return session.prepare_in_background(); });
}

Result<bool> Checkpointer::is_due(Step step) {
  return Impl::call<Result<bool>>(impl_.get(), false,
                                  [&](auto& session) { return session.is_due(step); });
}

Result<SaveOutcome> Checkpointer::save_checkpoint_if_needed(Step step, Stream stream) {
  return Impl::call<Result<SaveOutcome>>(impl_.get(), SaveOutcome::disabled, [&](auto& session) {
    return session.save(step, stream, client::Due::by_policy);
  });
}

Result<SaveOutcome> Checkpointer::save(Step step, Stream stream) {
  return Impl::call<Result<SaveOutcome>>(impl_.get(), SaveOutcome::disabled, [&](auto& session) {
    return session.save(step, stream, client::Due::always);
  });
}

Status Checkpointer::guard(Stream stream) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) { return session.guard(stream); });
}

Status Checkpointer::hold_captures(std::function<void(Step)> on_copied) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.hold_captures(std::move(on_copied)); });
}

Status Checkpointer::settle(Step step, Status verdict) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.settle(step, std::move(verdict)); });
}

Status Checkpointer::wait(Step step, Level level, std::chrono::milliseconds deadline) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.wait(step, level, deadline_after(deadline));
  });
}

Result<Restored> Checkpointer::restore() {
  return Impl::call<Result<Restored>>(impl_.get(), disabled_restore(),
                                      [](auto& session) { return session.restore(std::nullopt); });
}

Result<Restored> Checkpointer::restore(Step step) {
  return Impl::call<Result<Restored>>(impl_.get(), disabled_restore(),
                                      [&](auto& session) { return session.restore(step); });
}

Result<Restored> Checkpointer::restore(std::optional<Step> step, const ChooseTargets& choose) {
  return Impl::call<Result<Restored>>(impl_.get(), disabled_restore(), [&](auto& session) {
    return session.restore(step, &choose);
  });
}

Result<Restored> Checkpointer::restore_from(std::string_view path) {
  return Impl::call<Result<Restored>>(impl_.get(), disabled_restore(),
                                      [&](auto& session) { return session.restore_from(path); });
}

Result<Restored> Checkpointer::restore_from(std::string_view path, std::uint32_t rank,
                                            const ChooseTargets& choose) {
  return Impl::call<Result<Restored>>(impl_.get(), disabled_restore(), [&](auto& session) {
    return session.restore_from(path, rank, choose);
  });
}

Status Checkpointer::watch_restores(RestoreWatch watch) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.watch_restores(std::move(watch)); });
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

Result<std::string> Checkpointer::status(std::chrono::milliseconds deadline) {
  return Impl::call<Result<std::string>>(impl_.get(), std::string(), [&](auto& session) {
    return session.status(deadline_after(deadline));
  });
}

Status Checkpointer::close(std::chrono::milliseconds deadline) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    Status closed = session.close(deadline_after(deadline));
    impl_->let_others_open();  // Closed it is, whatever became of the flush.
    return closed;
  });
}

}  // namespace ckpt
