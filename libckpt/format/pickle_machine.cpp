#include "format/pickle_machine.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "format/json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view pickle_label = "pickle of tensors";
constexpr std::size_t pickle_text_bytes_max = 1u << 20;
constexpr std::size_t line_bytes_max = 1024;

}  // namespace

PickleMachine::PickleMachine(std::span<const std::byte> pickle) : reader_(pickle, pickle_label) {}

Unexpected PickleMachine::broken(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("{}: {}", pickle_label, problem));
}

Unexpected PickleMachine::refused(std::string_view problem) {
  return fail(Errc::unsupported, fmt::format("{}: {}", pickle_label, problem));
}

void PickleMachine::push(Value value) {
  values_.push_back(std::move(value));
  stack_.push_back(static_cast<Index>(values_.size() - 1));
}

Result<PickleMachine::Index> PickleMachine::pop() {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back()))
    return broken("an instruction without its operand");
  const Index top = stack_.back();
  stack_.pop_back();
  return top;
}

Result<std::vector<PickleMachine::Index>> PickleMachine::pop_to_mark() {
  if (marks_.empty() || marks_.back() > stack_.size())
    return broken("an instruction without a mark");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Index> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

Status PickleMachine::push_text(std::uint64_t bytes) {
  if (bytes > pickle_text_bytes_max) return broken("a text that is too long");
  const auto raw = reader_.raw(bytes);
  std::string text(reinterpret_cast<const char*>(raw.data()), raw.size());
  if (!is_utf8(text)) return broken("a text that is not UTF-8");
  push({Kind::text, 0, std::move(text), {}, {}});
  return {};
}

// A larger one is a number of no tensor.
Status PickleMachine::push_long() {
  const std::size_t bytes = reader_.u8();
  const auto raw = reader_.raw(bytes);
  if (bytes > sizeof(std::int64_t)) {
    push(Value());
    return {};
  }
  std::uint64_t value = 0;
  for (std::size_t index = 0; index < raw.size(); ++index)
    value |= std::to_integer<std::uint64_t>(raw[index]) << (8 * index);
  const bool is_negative = !raw.empty() && (raw.back() & std::byte{0x80}) != std::byte{0};
  if (is_negative && raw.size() < sizeof(value)) value |= ~std::uint64_t{0} << (8 * raw.size());
  push_integer(static_cast<std::int64_t>(value));
  return {};
}

Status PickleMachine::push_tuple(std::size_t count) {
  std::vector<Index> items(count);
  for (std::size_t index = count; index > 0; --index) {
    CKPT_TRY(items[index - 1], pop());
  }
  push({Kind::tuple, 0, {}, {}, std::move(items)});
  return {};
}

Status PickleMachine::extend(Kind kind, std::vector<Index> items) {
  CKPT_TRY(const Index top, pop());
  stack_.push_back(top);
  Value& target = values_[top];
  if (target.kind != kind) return broken("items for what cannot have them");
  if (kind == Kind::dict && items.size() % 2 != 0) return broken("a key without a value");
  target.items.insert(target.items.end(), items.begin(), items.end());
  return {};
}

Result<std::string> PickleMachine::line() {
  std::string text;
  while (reader_.is_good() && text.size() < line_bytes_max) {
    const char letter = static_cast<char>(reader_.u8());
    if (letter == '\n') return text;
    text.push_back(letter);
  }
  return broken("a name without an end");
}

Status PickleMachine::step_container(std::uint8_t code) {
  switch (code) {
    case '(':
      marks_.push_back(stack_.size());
      return {};
    case ')':
      push({Kind::tuple, 0, {}, {}, {}});
      return {};
    case ']':
      push({Kind::list, 0, {}, {}, {}});
      return {};
    case '}':
      push({Kind::dict, 0, {}, {}, {}});
      return {};
    case 0x85:
    case 0x86:
    case 0x87:
      return push_tuple(code - 0x84u);
    case 't': {
      CKPT_TRY(auto items, pop_to_mark());
      push({Kind::tuple, 0, {}, {}, std::move(items)});
      return {};
    }
    case 'a': {
      CKPT_TRY(const Index item, pop());
      return extend(Kind::list, {item});
    }
    case 's': {
      CKPT_TRY(const Index value, pop());
      CKPT_TRY(const Index key, pop());
      return extend(Kind::dict, {key, value});
    }
    case 'e':
    case 'u': {
      CKPT_TRY(auto items, pop_to_mark());
      return extend(code == 'e' ? Kind::list : Kind::dict, std::move(items));
    }
    default:
      return step_memo(code);
  }
}

Status PickleMachine::step_memo(std::uint8_t code) {
  const bool puts = code == 'q' || code == 'r' || code == 0x94;
  const bool gets = code == 'h' || code == 'j';
  if (!puts && !gets) return step_name(code);
  const std::uint32_t key = code == 0x94                 ? static_cast<std::uint32_t>(memo_.size())
                            : code == 'q' || code == 'h' ? reader_.u8()
                                                         : reader_.u32();
  if (puts) {
    CKPT_TRY(const Index top, pop());
    stack_.push_back(top);
    memo_[key] = top;
    return {};
  }
  const auto known = memo_.find(key);
  if (known == memo_.end()) return broken("a reference to nothing");
  stack_.push_back(known->second);
  return {};
}

Status PickleMachine::step_name(std::uint8_t code) {
  switch (code) {
    case 'c': {
      CKPT_TRY(const std::string module, line());
      CKPT_TRY(const std::string attribute, line());
      return push_name(module + "." + attribute);
    }
    case 0x93: {
      CKPT_TRY(const Index attribute, pop());
      CKPT_TRY(const Index module, pop());
      if (values_[module].kind != Kind::text || values_[attribute].kind != Kind::text)
        return broken("a name that is no text");
      return push_name(values_[module].text + "." + values_[attribute].text);
    }
    case 'Q':
      return load_persistent();
    case 'R':
      return call();
    case 'b': {  // The state of an OrderedDict: torch's notes beside its tensors.
      CKPT_TRY(const Index state, pop());
      CKPT_TRY(const Index target, pop());
      if (values_[target].kind != Kind::dict || values_[state].kind != Kind::dict)
        return refused("it sets the state of what is no dictionary");
      stack_.push_back(target);
      return {};
    }
    default:
      return refused(fmt::format("instruction {:#04x} is not on the list", code));
  }
}

Status PickleMachine::step(std::uint8_t code) {
  switch (code) {
    case 0x80:  // Protocol.
      if (const auto protocol = reader_.u8(); protocol < 2 || protocol > 5)
        return broken("a protocol that is not known");
      return {};
    case 0x95:  // Frame.
      (void)reader_.u64();
      return {};
    case 'N':
    case 0x88:
    case 0x89:
      push(Value());
      return {};
    case 'J':
      push_integer(static_cast<std::int32_t>(reader_.u32()));
      return {};
    case 'K':
      push_integer(reader_.u8());
      return {};
    case 'M':
      push_integer(reader_.u16());
      return {};
    case 0x8a:
      return push_long();
    case 'G':
      (void)reader_.u64();
      push(Value());
      return {};
    case 'X':
      return push_text(reader_.u32());
    case 0x8c:
      return push_text(reader_.u8());
    case 0x8d:
      return push_text(reader_.u64());
    case 'B':
    case 'C':
      (void)reader_.raw(code == 'B' ? reader_.u32() : reader_.u8());
      push(Value());
      return {};
    default:
      return step_container(code);
  }
}

Result<PickleMachine::Index> PickleMachine::run() {
  while (reader_.is_good()) {
    const std::uint8_t code = reader_.u8();
    if (!reader_.is_good()) break;
    if (values_.size() > pickle_values_max) return broken("too many values");
    if (code != '.') {
      CKPT_CHECK(step(code));
      continue;
    }
    CKPT_CHECK(reader_.finish());
    return pop();
  }
  CKPT_CHECK(reader_.finish());
  return broken("it has no end");
}

}  // namespace ckpt::format
