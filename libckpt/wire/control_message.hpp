// ControlMessage: one message between the daemon and a trainer or the command line, of any kind.
//
// Copies and moves of a variant of so many kinds are tables of functions, which cost each file that
// makes one a second or two to compile: these are made once.
#pragma once

#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "wire/control_messages.hpp"

namespace ckpt::wire::control {

// The order is the protocol's: a message's kind is its place here, counted from 1.
using AnyMessage =
    std::variant<Hello, Attach, SetLayout, Begin, FilledSlot, Abandon, Skipped, StartFresh,
                 AskRestore, RestoreResult, RestoredOk, Close, Goodbye, AttachAnswer, SlotSegments,
                 SlotsReady, SlotsFailed, Granted, NextCapture, LevelReached, StepDropped, Offer,
                 Begun, Closed, Fenced, AskStatus, AskRecover, Stop, Drop, Answer, Arrived, Flush,
                 Notice, Filling, StepTime>;

template <class Kind, class Any>
inline constexpr bool is_kind_of = false;
template <class Kind, class... Kinds>
inline constexpr bool is_kind_of<Kind, std::variant<Kinds...>> =
    (std::is_same_v<Kind, Kinds> || ...);

struct Message : AnyMessage {
  Message();
  template <class Kind>
    requires is_kind_of<Kind, AnyMessage>
  Message(Kind it) : AnyMessage(std::in_place_type<Kind>, std::move(it)) {}
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();
};

std::string_view name_of(const Message& message);  // "attach"

}  // namespace ckpt::wire::control
