#include "daemon/step_lender.hpp"

#include <fmt/format.h>

#include "node/lent_step.hpp"

namespace ckpt::daemon {

namespace control = wire::control;

bool StepLender::is_for(const control::Message& question) {
  return std::holds_alternative<control::OpenHeld>(question) ||
         std::holds_alternative<control::AskRecord>(question) ||
         std::holds_alternative<control::AskChunks>(question);
}

control::HeldStep StepLender::open(const control::OpenHeld& question) {
  step_.reset();  // Before another one: what is lent is not taken for lost.
  auto lent = engine_.lend(question.job, question.step);
  if (lent) {
    step_ = std::move(*lent);
    return step_->description();
  }
  control::HeldStep none;
  none.result = fail(std::move(lent).error());
  return none;
}

Task<std::vector<control::Message>> StepLender::answer(control::Message question) {
  std::vector<control::Message> answers;
  if (const auto* open_held = std::get_if<control::OpenHeld>(&question)) {
    answers.emplace_back(open(*open_held));
    co_return answers;
  }
  if (step_ == nullptr)
    co_return fail(Errc::corruption,
                   fmt::format("{} before open_held", control::name_of(question)));
  const std::shared_ptr<node::LentStep> step = step_;
  if (const auto* ask = std::get_if<control::AskRecord>(&question)) {
    control::HeldRecord held;
    auto record = co_await step->record(ask->rank);
    if (record) held.record = format::encode(**record);
    if (!record) held.result = fail(std::move(record).error());
    answers.emplace_back(std::move(held));
    co_return answers;
  }
  const auto& ask = std::get<control::AskChunks>(question);
  std::vector<std::size_t> chunks(ask.chunks.begin(), ask.chunks.end());
  auto read = co_await step->read(ask.rank, std::move(chunks));
  if (!read) {
    control::HeldChunk none;
    none.result = fail(std::move(read).error());
    answers.emplace_back(std::move(none));
    co_return answers;
  }
  for (std::vector<std::byte>& bytes : *read) {
    control::HeldChunk held;
    held.bytes = std::move(bytes);
    answers.emplace_back(std::move(held));
  }
  co_return answers;
}

}  // namespace ckpt::daemon
