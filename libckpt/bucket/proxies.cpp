#include "bucket/proxies.hpp"

#include <initializer_list>

namespace ckpt::bucket {

Proxies Proxies::read(const Environment& environment) {
  const auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      if (auto value = environment.variable(name)) return *value;
    }
    return {};
  };
  Proxies proxies;
  // Not HTTP_PROXY: a web server makes that of a request's header for its programs.
  proxies.http = first_of({"http_proxy", "all_proxy", "ALL_PROXY"});
  proxies.https = first_of({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
  proxies.none_for = first_of({"no_proxy", "NO_PROXY"});
  return proxies;
}

}  // namespace ckpt::bucket
