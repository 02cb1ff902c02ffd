#include <ckpt/framework.hpp>
#include <utility>

#include "client/checkpointer_impl.hpp"
#include "format/piece.hpp"

namespace ckpt {

std::string tensor_name(std::string_view name, const Piece& piece, DType dtype,
                        std::span<const std::int64_t> shape) {
  const bool is_piece = format::problem_of(piece, dtype, shape).empty();
  return std::string(is_piece ? format::tensor_name_of(name, piece, shape) : name);
}

Result<FrameworkCheckpointer> FrameworkCheckpointer::open(Options options) {
  CKPT_TRY(auto impl, Impl::open(std::move(options)));
  return FrameworkCheckpointer(std::move(impl));
}

Status FrameworkCheckpointer::add_archive(std::string name, std::span<const NamedTensor> entries) {
  return Impl::call<Status>(impl_.get(), {}, [&](auto& session) {
    return session.add_archive(std::move(name), entries);
  });
}

Status FrameworkCheckpointer::set_frozen(std::span<const std::string> names) {
  return Impl::call<Status>(impl_.get(), {},
                            [&](auto& session) { return session.set_frozen(names); });
}

Status FrameworkCheckpointer::set_blob(std::string name, std::span<const std::byte> bytes) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.set_blob(std::move(name), bytes); });
}

std::optional<std::span<const std::byte>> FrameworkCheckpointer::blob(std::string_view name) const {
  if (!impl_ || impl_->is_disabled() || impl_->is_forked()) return std::nullopt;
  const Impl::InCall in_call(*impl_);
  return impl_->session().blob(name);
}

Status FrameworkCheckpointer::prepare() {
  return Impl::call<Status>(impl_.get(), {}, [](auto& session) { return session.prepare(); });
}

Status FrameworkCheckpointer::prepare_in_background() {
  return Impl::call<Status>(impl_.get(), {},
                            [](auto& session) { return session.prepare_in_background(); });
}

Result<bool> FrameworkCheckpointer::is_due(Step step) {
  return Impl::call<Result<bool>>(impl_.get(), false,
                                  [&](auto& session) { return session.is_due(step); });
}

Status FrameworkCheckpointer::hold_captures(std::function<void(Step)> on_copied) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.hold_captures(std::move(on_copied)); });
}

Status FrameworkCheckpointer::settle(Step step, Status verdict) {
  return Impl::call<Status>(
      impl_.get(), {}, [&](auto& session) { return session.settle(step, std::move(verdict)); });
}

Status FrameworkCheckpointer::give_up(Step step, std::string why) {
  return Impl::call<Status>(impl_.get(), {},
                            [&](auto& session) { return session.give_up(step, std::move(why)); });
}

Result<Restored> FrameworkCheckpointer::restore_chosen(RestoreRequest request,
                                                       const ChooseTargets& choose,
                                                       std::uint32_t rank) {
  return Impl::call<Result<Restored>>(impl_.get(), client::disabled_restore(), [&](auto& session) {
    return session.restore(std::move(request), client::Choice{choose, rank});
  });
}

Result<std::string> FrameworkCheckpointer::status(std::chrono::milliseconds deadline) {
  return Impl::call<Result<std::string>>(impl_.get(), std::string(), [&](auto& session) {
    return session.status(client::deadline_after(deadline));
  });
}

}  // namespace ckpt
