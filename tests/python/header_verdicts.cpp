// header_verdicts: which files our reader of safetensors accepts.
//
//   python_header_verdicts FILES
//
// FILES holds files one behind the other, each after its size in eight bytes. A line for each:
// "yes", or "no: " and why.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "format/safetensors_image.hpp"

namespace {

ckpt::Result<std::size_t> read(std::span<const std::byte> file) {
  if (file.size() < sizeof(std::uint64_t)) return ckpt::fail(ckpt::Errc::corruption, "too short");
  CKPT_TRY(const std::uint64_t header, ckpt::format::safetensors_header_bytes(file, file.size()));
  CKPT_TRY(const auto image, ckpt::format::parse_safetensors(file.first(header), file.size()));
  return image.tensors.size();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream stream(argv[1], std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::span<const std::byte> rest = std::as_bytes(std::span(all));
  while (!rest.empty()) {
    std::uint64_t size = 0;
    if (rest.size() < sizeof size) return 2;
    std::memcpy(&size, rest.data(), sizeof size);
    rest = rest.subspan(sizeof size);
    if (size > rest.size()) return 2;
    const auto verdict = read(rest.first(size));
    if (verdict) {
      std::puts("yes");
    } else {
      std::printf("no: %s\n", verdict.error().text().c_str());
    }
    rest = rest.subspan(size);
  }
  return 0;
}
