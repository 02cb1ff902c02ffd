#include "wire/control_message.hpp"

namespace ckpt::wire::control {

template <class Any>
OneOf<Any>::OneOf() = default;
template <class Any>
OneOf<Any>::OneOf(const OneOf& other) = default;
template <class Any>
OneOf<Any>::OneOf(OneOf&& other) noexcept = default;
template <class Any>
OneOf<Any>& OneOf<Any>::operator=(const OneOf& other) = default;
template <class Any>
OneOf<Any>& OneOf<Any>::operator=(OneOf&& other) noexcept = default;
template <class Any>
OneOf<Any>::~OneOf() = default;

template struct OneOf<AnyCall>;
template struct OneOf<AnyEvent>;
template struct OneOf<AnyMessage>;

namespace {

template <class Part>
Message widened(Part part) {
  return std::visit([](auto& it) { return Message(std::move(it)); }, part);
}

template <class Part, class Any>
std::optional<Part> narrowed(Message message) {
  return std::visit(
      [](auto& it) -> std::optional<Part> {
        if constexpr (is_kind_of<std::remove_cvref_t<decltype(it)>, Any>)
          return Part(std::move(it));
        else
          return std::nullopt;
      },
      message);
}

const Kind& kind_in(const auto& message) {
  return std::visit([](const auto& it) -> const Kind& { return it.kind; }, message);
}

}  // namespace

Message to_message(Call call) {
  return widened(std::move(call));
}

Message to_message(Event event) {
  return widened(std::move(event));
}

std::optional<Call> to_call(Message message) {
  return narrowed<Call, AnyCall>(std::move(message));
}

std::optional<Event> to_event(Message message) {
  return narrowed<Event, AnyEvent>(std::move(message));
}

const Kind& kind_of(const Message& message) {
  return kind_in(message);
}

std::string_view name_of(const Message& message) {
  return kind_in(message).name;
}

std::string_view name_of(const Call& call) {
  return kind_in(call).name;
}

}  // namespace ckpt::wire::control
