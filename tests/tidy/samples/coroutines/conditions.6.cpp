Task<void> f() {
  if (co_await g()) co_return {};
  while (!(co_await g())) h();
  const bool both = x && co_await g();
  co_return co_await g();
  h(co_await g());
  if (auto r = co_await g(); r) h();
}
