// Proxies: the proxies that the environment names, by the rules of libcurl.
//
// libcurl would read the environment by itself, on the thread of each request.
#pragma once

#include <string>

#include "bucket/environment.hpp"

namespace ckpt::bucket {

struct Proxies {
  std::string http;      // For requests without TLS; empty: none.
  std::string https;     // With TLS.
  std::string none_for;  // Hosts that are reached without, as libcurl's CURLOPT_NOPROXY has them.

  static Proxies read(const Environment& environment);
};

}  // namespace ckpt::bucket
