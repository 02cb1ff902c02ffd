// Goal:   no file of another program makes `ckpt import` crash, or read outside of the file.
// Method: the input is a file of a model, or, if it begins with a brace, the index of one whose
//         other file is sound. What is accepted lies in its file, under names that are there once.
#include <fstream>
#include <set>

#include "cli/import_source.hpp"
#include "cli/workplace.hpp"
#include "format/layout.hpp"
#include "fuzz.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::fuzz {

namespace {

void write(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string small_model() {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}    )";
  const std::uint64_t bytes = header.size();
  std::string file(sizeof bytes, '\0');
  std::memcpy(file.data(), &bytes, sizeof bytes);
  return file + header + "xy";
}

// Kept from input to input: files and threads take longer than any parser.
struct Place {
  Place() { write(directory.file("part.safetensors"), small_model()); }
  test::TemporaryDirectory directory;
  cli::Workplace workplace;
};

}  // namespace

void fuzz_one(Bytes input) {
  static Place place;
  const std::string_view text = text_of(input);
  const std::string path = place.directory.file(text.starts_with('{') ? "index.json" : "model");
  write(path, text);
  const auto source =
      place.workplace.run(cli::open_import(place.workplace.files(), {path}, "model."));
  if (!source) {
    promise(!source.error().message().empty(), "an error says what was wrong");
    return;
  }
  std::set<std::string> names;
  for (const cli::ImportTensor& tensor : (*source)->tensors) {
    promise(names.insert(tensor.spec.name).second, "a name is there once");
    promise(tensor.file < (*source)->files.size(), "a tensor is of a file that was named");
    const auto bytes = format::tensor_bytes(tensor.spec.dtype, tensor.spec.shape);
    promise(bytes.has_value() && *bytes == tensor.bytes.bytes, "a shape fits its bytes");
    const bool is_the_input = (*source)->paths[tensor.file] == path;
    if (is_the_input) promise(tensor.bytes.end() <= input.size(), "a tensor lies in its file");
  }
}

}  // namespace ckpt::fuzz
