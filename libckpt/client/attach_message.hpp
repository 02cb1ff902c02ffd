// AttachMessage: the options that the engine gets at the start of a session.
#pragma once

#include <ckpt/options.hpp>
#include <string>

#include "wire/control_message.hpp"

namespace ckpt::client {

// An empty list of nodes becomes a list of one. An empty `node` becomes the only node's name, or
// the host's.
// Errors: invalid_argument (this node is not in the list).
Result<wire::control::Attach> make_attach(const Options& options);
std::string name_for_errors(const Options& options);  // "rank 3 of job gpt2"

}  // namespace ckpt::client
