// known_values: saves one checkpoint whose bytes follow from a rule that Python knows as well.
//
//   python_known_values DIRECTORY RUNTIME_DIRECTORY CKPTD
//
// Byte i of the tensor with number n is (131 n + 7 i + i / 251) modulo 256; of booleans only the
// lowest bit. The numbers count the tensors in the order of `known_tensors`.
#include <ckpt/framework.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace {

using ckpt::DType;

struct KnownTensor {
  const char* name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::optional<ckpt::Piece> piece;
};

// Also a box and a flat range of a larger tensor. Boundaries: no dimension, no element, one page
// and its neighbours, more than a Chunk.
const std::vector<KnownTensor>& known_tensors() {
  static const std::vector<KnownTensor> tensors = {
      {"scalar", DType::f32, {}},
      {"empty", DType::f64, {3, 0}},
      {"page", DType::f32, {1024}},
      {"page.less", DType::u8, {4095}},
      {"page.more", DType::u8, {17, 241}},
      {"chunk.more", DType::f32, {1024, 1025}},
      {"flags", DType::boolean, {5, 3}},
      {"i8", DType::i8, {7}},
      {"u16", DType::u16, {3, 5}},
      {"i16", DType::i16, {3, 5}},
      {"f16", DType::f16, {9}},
      {"bf16", DType::bf16, {33, 3}},
      {"u32", DType::u32, {2, 2, 2}},
      {"i32", DType::i32, {11}},
      {"u64", DType::u64, {4}},
      {"i64", DType::i64, {1, 6}},
      {"f64", DType::f64, {6, 1}},
      {"c64", DType::c64, {5}},
      {"f8_e4m3", DType::f8_e4m3, {13}},
      {"f8_e5m2", DType::f8_e5m2, {13}},
      {"name \"quoted\" \u00e9", DType::u8, {3}},
      {"box", DType::f32, {2, 3}, ckpt::Piece{{8, 6}, {6, 3}, {}, {}, 0}},
      {"range", DType::f32, {5}, ckpt::Piece{{8, 6}, {}, 13, {}, 0}},
  };
  return tensors;
}

std::vector<std::byte> bytes_of(const KnownTensor& tensor, std::size_t number) {
  std::size_t count = ckpt::size_of(tensor.dtype);
  for (const std::int64_t dimension : tensor.shape) count *= static_cast<std::size_t>(dimension);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t value = 131 * number + 7 * i + i / 251;
    bytes[i] = static_cast<std::byte>(tensor.dtype == DType::boolean ? value & 1 : value & 255);
  }
  return bytes;
}

void check(const ckpt::Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  ckpt::Options options;
  options.job = "known-values";
  options.dir = argv[1];
  options.runtime_dir = argv[2];
  options.daemon_path = argv[3];
  options.save_storage_interval.steps = 1;
  auto opened = ckpt::FrameworkCheckpointer::open(options);
  if (!opened) check(ckpt::Status(ckpt::Unexpected(opened.error())));
  ckpt::FrameworkCheckpointer checkpointer = std::move(opened).value();

  std::vector<std::vector<std::byte>> contents;
  for (const KnownTensor& tensor : known_tensors())
    contents.push_back(bytes_of(tensor, contents.size()));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const KnownTensor& tensor = known_tensors()[i];
    ckpt::TensorRef added{contents[i].data(), tensor.dtype, tensor.shape};
    added.piece = tensor.piece;
    check(checkpointer.add(tensor.name, added));
  }
  check(checkpointer.add("tied", {contents[5].data(), DType::f32, {1024, 1025}}));
  const char blob[] = "a blob";
  check(checkpointer.set_blob("note", std::as_bytes(std::span(blob, sizeof blob - 1))));

  const auto saved = checkpointer.save(ckpt::Step{42});
  if (!saved || *saved != ckpt::SaveOutcome::started) return 1;
  check(checkpointer.guard());
  check(checkpointer.wait(ckpt::Step{42}, ckpt::Level::durable, std::chrono::seconds(60)));
  check(checkpointer.close());
  return 0;
}
