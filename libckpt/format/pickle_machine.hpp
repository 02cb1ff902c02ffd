// PickleMachine: the stack machine that a pickle is a program for, without any way out of it.
//
// It knows the instructions that build containers, numbers and texts (pickletools, protocols 2 to
// 5). A name or a call of a part of a program goes to the derived class, which has a list of those
// that it takes. Nothing is imported, called or made beyond that.
//
// Memory: at most `pickle_values_max` values; they stay until the end, so that the memo may name
// any.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/codec.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

// Some 100 bytes each. A tensor takes about 30 of them.
inline constexpr std::size_t pickle_values_max = 4'000'000;

class PickleMachine {
 public:
  using Index = std::uint32_t;
  enum class Kind : std::uint8_t {
    plain,  // Something that is no tensor and holds none.
    integer,
    text,
    tuple,
    list,
    dict,     // Keys and values take turns.
    name,     // A module's attribute: "torch.FloatStorage".
    storage,  // These two are made by the derived class.
    tensor,
  };
  struct Value {
    Kind kind = Kind::plain;
    std::int64_t integer = 0;    // A storage's bytes; a tensor's number.
    std::string text;            // Also a storage's key.
    std::optional<DType> dtype;  // A storage's; none: untyped.
    std::vector<Index> items;
  };

  virtual ~PickleMachine() = default;

 protected:
  explicit PickleMachine(std::span<const std::byte> pickle);

  // Returns what the pickle makes. Errors: corruption, unsupported.
  Result<Index> run();

  // Each takes its operands from the stack, and puts its result there.
  virtual Status push_name(std::string name) = 0;
  virtual Status load_persistent() = 0;
  virtual Status call() = 0;

  const Value& at(Index index) const { return values_[index]; }
  // Invalidates what at() returned.
  void push(Value value);
  void push_known(Index index) { stack_.push_back(index); }
  Result<Index> pop();

  static Unexpected broken(std::string_view problem);
  static Unexpected refused(std::string_view problem);

 private:
  Status step(std::uint8_t code);
  Status step_container(std::uint8_t code);
  Status step_memo(std::uint8_t code);
  Status step_name(std::uint8_t code);
  void push_integer(std::int64_t value) { push({Kind::integer, value, {}, {}, {}}); }
  Status push_text(std::uint64_t bytes);
  Status push_long();
  Result<std::vector<Index>> pop_to_mark();
  Status push_tuple(std::size_t count);
  Status extend(Kind kind, std::vector<Index> items);
  Result<std::string> line();

  Reader reader_;
  std::vector<Value> values_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Index> memo_;
};

}  // namespace ckpt::format
