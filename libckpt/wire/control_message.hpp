// ControlMessage: any message between the daemon and a trainer or the command line. Call and Event:
// those that trainer and engine exchange.
//
// Copies and moves of a variant of so many kinds are tables of functions. They would cost each file
// a second or two to compile, so they are made once.
#pragma once

#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "wire/control_calls.hpp"
#include "wire/control_events.hpp"
#include "wire/control_messages.hpp"

namespace ckpt::wire::control {

template <class It, class Any>
inline constexpr bool is_kind_of = false;
template <class It, class... Kinds>
inline constexpr bool is_kind_of<It, std::variant<Kinds...>> = (std::is_same_v<It, Kinds> || ...);

template <class... Lists>
struct Joined;
template <class... A, class... B, class... C>
struct Joined<std::variant<A...>, std::variant<B...>, std::variant<C...>> {
  using Type = std::variant<A..., B..., C...>;
};
using AnyMessage = Joined<AnyOther, AnyCall, AnyEvent>::Type;

template <class Any>
struct OneOf : Any {
  OneOf();
  template <class It>
    requires is_kind_of<It, Any>
  OneOf(It it) : Any(std::in_place_type<It>, std::move(it)) {}
  OneOf(const OneOf& other);
  OneOf(OneOf&& other) noexcept;
  OneOf& operator=(const OneOf& other);
  OneOf& operator=(OneOf&& other) noexcept;
  ~OneOf();
};
extern template struct OneOf<AnyCall>;
extern template struct OneOf<AnyEvent>;
extern template struct OneOf<AnyMessage>;

using Call = OneOf<AnyCall>;
using Event = OneOf<AnyEvent>;
using Message = OneOf<AnyMessage>;

Message to_message(Call call);
Message to_message(Event event);
// None: it is of another kind.
std::optional<Call> to_call(Message message);
std::optional<Event> to_event(Message message);

const Kind& kind_of(const Message& message);
std::string_view name_of(const Message& message);  // "attach"
std::string_view name_of(const Call& call);

}  // namespace ckpt::wire::control
