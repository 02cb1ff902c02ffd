#include "client/held_capture.hpp"

#include <utility>

namespace ckpt::client {

void HeldCapture::begin(Step step) {
  state_.change([&](State& state) {
    state = {};
    state.step = step;
  });
}

void HeldCapture::forget() {
  state_.change([](State& state) { state = {}; });
}

bool HeldCapture::is_held(Step step) const {
  return state_.read([&](const State& state) { return state.step == step; });
}

std::optional<HeldCapture::Judged> HeldCapture::copied(CopiedCapture capture) {
  return state_.change([&](State& state) -> std::optional<Judged> {
    if (!state.verdict) {
      state.capture = std::move(capture);
      return std::nullopt;
    }
    Judged judged{std::move(capture), std::move(*state.verdict)};
    state = {};
    return judged;
  });
}

std::optional<HeldCapture::Judged> HeldCapture::judge(Step step, Status verdict) {
  return state_.change([&](State& state) -> std::optional<Judged> {
    if (state.step != step || state.verdict) return std::nullopt;
    if (!state.capture) {
      state.verdict = std::move(verdict);
      return std::nullopt;
    }
    Judged judged{std::move(*state.capture), std::move(verdict)};
    state = {};
    return judged;
  });
}

std::optional<Step> HeldCapture::waiting() const {
  return state_.read([](const State& state) -> std::optional<Step> {
    return state.capture ? state.step : std::nullopt;
  });
}

}  // namespace ckpt::client
