// ChangeChecked: a change of an object's state, between two checks of what always holds of it.
#pragma once

#include <type_traits>

namespace ckpt {

template <class Object, class Change>
auto change_checked(const Object& object, Change change) {
  object.check_invariants();
  if constexpr (std::is_void_v<decltype(change())>) {
    change();
    object.check_invariants();
  } else {
    auto result = change();
    object.check_invariants();
    return result;
  }
}

}  // namespace ckpt
