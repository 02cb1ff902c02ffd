void f() {
  asio::co_spawn(executor, g(), asio::detached);
}
