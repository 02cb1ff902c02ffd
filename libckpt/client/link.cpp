#include "client/link.hpp"

namespace ckpt::client {

Result<std::unique_ptr<Link>> open_link(const Options& options, Deadline deadline) {
  return options.embedded ? open_embedded_link(options, deadline)
                          : open_daemon_link(options, deadline);
}

}  // namespace ckpt::client
