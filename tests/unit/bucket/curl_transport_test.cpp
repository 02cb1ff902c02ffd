// Goal:   requests take the proxies that they were given, and never those that the environment has
//         meanwhile, since a thread of ours would read it while the trainer changes it.
// Method: a server that nobody listens for, and a proxy that hangs up on whoever comes.
#include "bucket/curl_transport.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "os/fd.hpp"

namespace ckpt::bucket {

namespace {

struct Listening {
  Listening() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t bytes = sizeof(address);
    REQUIRE(::bind(fd.number(), any, bytes) == 0);
    REQUIRE(::getsockname(fd.number(), any, &bytes) == 0);
    REQUIRE(::listen(fd.number(), 4) == 0);
    host = "127.0.0.1:" + std::to_string(::ntohs(address.sin_port));
  }
  bool has_caller() const {
    pollfd look{fd.number(), POLLIN, 0};
    return ::poll(&look, 1, 0) == 1;
  }
  os::Fd fd;
  std::string host;
};

// Nobody listens there any more.
std::string free_host() {
  const Listening gone;
  return gone.host;
}

Result<Response> ask(const Proxies& proxies) {
  const auto transport = make_curl_transport("", proxies);
  if (!transport) return fail(Error(transport.error()));
  Request request;
  request.method = "GET";
  request.origin.scheme = "http";
  request.origin.host = free_host();
  return (*transport)->perform(request);
}

}  // namespace

TEST_CASE("curl transport: proxies are those that were given", "[unit][bucket]") {
  const Listening proxy;
  std::string caller;
  std::thread hangs_up([&] {
    const os::Fd connection(::accept(proxy.fd.number(), nullptr, nullptr));
    char begin[64] = {};
    if (::read(connection.number(), begin, sizeof(begin) - 1) > 0) caller = begin;
  });
  Proxies proxies;
  proxies.http = "http://" + proxy.host;
  const auto answer = ask(proxies);
  // Where there is no libcurl, nobody has called.
  if (!answer && answer.error().code() == Errc::unsupported)
    ::shutdown(proxy.fd.number(), SHUT_RDWR);
  hangs_up.join();
  REQUIRE_FALSE(answer);
  if (answer.error().code() != Errc::unsupported) CHECK_THAT(caller, Catch::StartsWith("GET http"));
}

TEST_CASE("curl transport: without a proxy the environment's is not taken", "[unit][bucket]") {
  const Listening proxy;
  ::setenv("http_proxy", ("http://" + proxy.host).c_str(), 1);
  const auto answer = ask({});
  ::unsetenv("http_proxy");
  CHECK_FALSE(answer);
  CHECK_FALSE(proxy.has_caller());
}

}  // namespace ckpt::bucket
