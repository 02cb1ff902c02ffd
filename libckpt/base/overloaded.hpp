// Overloaded: several functions as one, for std::visit.
#pragma once

namespace ckpt {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace ckpt
