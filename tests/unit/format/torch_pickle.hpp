// PickleText: pickles of tensors as torch.save writes them, put together by hand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckpt::test {

inline std::string little(std::uint64_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t index = 0; index < bytes; ++index)
    out.push_back(static_cast<char>(value >> (8 * index)));
  return out;
}
inline std::string text(const std::string& value) {
  return "X" + little(value.size(), 4) + value;
}
inline std::string integer(std::uint64_t value) {
  return value < 256 ? "K" + little(value, 1) : "J" + little(value, 4);
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items) out += item;
  return out + "t";
}
inline std::string name(const std::string& module, const std::string& attribute) {
  return "c" + module + "\n" + attribute + "\n";
}
inline std::string numbers(const std::vector<std::uint64_t>& values) {
  std::vector<std::string> items;
  for (const std::uint64_t value : values) items.push_back(integer(value));
  return tuple(items);
}

struct PickleTensor {
  std::string type = "FloatStorage";
  std::string key = "0";
  std::uint64_t elements = 6;  // The storage's.
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> shape{2, 3};
  std::vector<std::uint64_t> strides{3, 1};
};
inline std::string tensor(const PickleTensor& given) {
  const std::string storage = tuple({text("storage"), name("torch", given.type), text(given.key),
                                     text("cpu"), integer(given.elements)}) +
                              "Q";
  const std::string hooks = name("collections", "OrderedDict") + ")R";
  return name("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage, integer(given.offset), numbers(given.shape), numbers(given.strides),
                "\x89", hooks}) +
         "R";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}
inline std::string pickle(const std::string& value) {
  return "\x80\x02" + value + ".";
}
inline std::span<const std::byte> bytes_in(const std::string& value) {
  return std::as_bytes(std::span(value.data(), value.size()));
}

}  // namespace ckpt::test
