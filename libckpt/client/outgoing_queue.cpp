#include "client/outgoing_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace control = wire::control;

namespace {

template <class Kind>
bool is(const control::Message& message) {
  return std::holds_alternative<Kind>(message);
}

// Merges `message` into `waiting`. False: they stay two messages.
bool merge_into(control::Message& waiting, const control::Message& message) {
  if (is<control::AskStatus>(message)) return is<control::AskStatus>(waiting);
  if (const auto* skipped = std::get_if<control::Skipped>(&message)) {
    auto* before = std::get_if<control::Skipped>(&waiting);
    if (before != nullptr) before->step = std::max(before->step, skipped->step);
    return before != nullptr;
  }
  if (const auto* steps = std::get_if<control::StepTime>(&message)) {
    auto* before = std::get_if<control::StepTime>(&waiting);
    if (before != nullptr) *before = *steps;
    return before != nullptr;
  }
  if (const auto* passed = std::get_if<control::Passed>(&message)) {
    auto* before = std::get_if<control::Passed>(&waiting);
    if (before != nullptr) before->step = std::max(before->step, passed->step);
    return before != nullptr;
  }
  const auto* arrived = std::get_if<control::Arrived>(&message);
  auto* before = std::get_if<control::Arrived>(&waiting);
  if (arrived == nullptr || before == nullptr) return false;
  if (before->slot != arrived->slot || before->generation != arrived->generation) return false;
  before->bytes = std::max(before->bytes, arrived->bytes);
  return true;
}

}  // namespace

bool OutgoingQueue::merge(const control::Message& message) {
  for (auto waiting = waiting_.rbegin(); waiting != waiting_.rend(); ++waiting) {
    if (merge_into(*waiting, message)) return true;
    // The order among these does not matter. But a skipped step must not be sent before the begin
    // of an older one, nor bytes before the begin of their capture.
    const bool may_be_passed = is<control::Skipped>(*waiting) || is<control::Arrived>(*waiting) ||
                               is<control::AskStatus>(*waiting) ||
                               is<control::StepTime>(*waiting) || is<control::Passed>(*waiting);
    if (!may_be_passed) return false;
  }
  return false;
}

bool OutgoingQueue::push(control::Message message) {
  if (merge(message)) return true;
  if (waiting_.size() >= size_max) return false;
  waiting_.push_back(std::move(message));
  return true;
}

control::Message OutgoingQueue::pop() {
  CKPT_ASSERT(!waiting_.empty());
  control::Message message = std::move(waiting_.front());
  waiting_.pop_front();
  return message;
}

}  // namespace ckpt::client
