// CurlTransport: carries requests by libcurl; connections are kept for later requests.
//
// Threads: any. Each request in flight has a handle of its own.
#pragma once

#include <memory>
#include <string>

#include "bucket/proxies.hpp"
#include "bucket/request.hpp"

namespace ckpt::bucket {

// `ca_file` empty: libcurl's own choice. Errors: unsupported (no libcurl on this machine).
Result<std::unique_ptr<Transport>> make_curl_transport(const std::string& ca_file,
                                                       const Proxies& proxies);

}  // namespace ckpt::bucket
