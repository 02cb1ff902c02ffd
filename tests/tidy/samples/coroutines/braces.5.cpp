Task<void> f(const std::string& name) {
  co_await g(Options{1, 2});
  CKPT_CO_TRY(auto x, co_await g({1, 2}));
  co_await async_initiate([this](auto handler) { start(handler); });
}
void h() {
  auto job = [this, x]() -> Task<void> { co_return {}; };
}
