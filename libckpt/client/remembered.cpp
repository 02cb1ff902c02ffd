#include "client/remembered.hpp"

namespace ckpt::client {

namespace control = wire::control;

namespace {

// `wish` is a StartFresh or an AskRestore.
std::uint64_t ask_of(const control::Message& wish) {
  const auto* restore = std::get_if<control::AskRestore>(&wish);
  return restore != nullptr ? restore->ask : std::get<control::StartFresh>(wish).ask;
}

}  // namespace

void Remembered::said(const control::Message& message) {
  if (const auto* layout = std::get_if<control::SetLayout>(&message)) layout_ = *layout;
  if (const auto* flush = std::get_if<control::Flush>(&message)) flush_ = *flush;
  if (const auto* ok = std::get_if<control::RestoredOk>(&message)) restored_ok_ = *ok;
  if (const auto* close = std::get_if<control::Close>(&message)) close_ = *close;
  const bool is_wish = std::holds_alternative<control::StartFresh>(message) ||
                       std::holds_alternative<control::AskRestore>(message);
  if (is_wish) wish_ = message;
}

void Remembered::begun(const control::Begun& begun, std::uint64_t timeline) {
  if (wish_ && ask_of(*wish_) == begun.ask) wish_.reset();
  if (!begun.result || begun.timeline == timeline) return;  // The session goes on as it was.
  flush_.reset();                                           // Its step was abandoned.
  restored_ok_.reset();                                     // It confirmed another restore.
}

std::vector<control::Message> Remembered::all() const {
  std::vector<control::Message> messages;
  if (layout_) messages.emplace_back(*layout_);
  if (wish_) messages.push_back(*wish_);
  if (flush_) messages.emplace_back(*flush_);
  if (restored_ok_) messages.emplace_back(*restored_ok_);
  if (close_) messages.emplace_back(*close_);
  return messages;
}

}  // namespace ckpt::client
