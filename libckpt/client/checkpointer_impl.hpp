// CheckpointerImpl: the shell around a CheckpointSession. When disabled it does nothing; after a
// move or a fork it returns an error. No exception gets out.
//
// Threads: as Checkpointer.
#pragma once

#include <unistd.h>

#include <atomic>
#include <ckpt/checkpointer.hpp>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "client/checkpoint_session.hpp"
#include "client/open_claim.hpp"

namespace ckpt {

namespace client {

// Only a lack of memory can still throw, here or in a library below.
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

inline Unexpected disabled_restore() {
  return fail(Errc::not_found,
              "restore: libckpt is disabled (option disable), nothing is restored");
}

}  // namespace client

class Checkpointer::Impl {
 public:
  static Result<std::unique_ptr<Impl>> open(Options options);

  Impl() = default;  // Disabled.
  Impl(client::OpenClaim claim, Options options, std::unique_ptr<client::SessionLink> link)
      : process_(getpid()),
        claim_(std::move(claim)),
        session_(std::in_place, std::move(options), std::move(link)) {}

  bool is_disabled() const { return !session_.has_value(); }
  // A fork has a copy of everything except the threads, and must leave all of it alone.
  bool is_forked() const { return session_.has_value() && getpid() != process_; }
  client::CheckpointSession& session() { return *session_; }
  void let_others_open() { claim_.reset(); }

  // InCall: exists while a call uses the session.
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

  // Returns `function(session)`, or `disabled`, or an error if the session must not be used.
  template <class Answer, class Function>
  static Answer call(Impl* impl, Answer disabled, Function function) noexcept {
    return client::without_exceptions<Answer>([&]() -> Answer {
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
  std::optional<client::CheckpointSession> session_;
};

}  // namespace ckpt
