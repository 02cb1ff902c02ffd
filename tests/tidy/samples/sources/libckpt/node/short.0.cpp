#include "node/long.hpp"

namespace ckpt::node {

int value();

}  // namespace ckpt::node
