// Goal:   a pickle that we write says of each tensor what it was given, in the few names that torch
//         allows without running code.
// Method: it is read by our own strict reader; Python's suite opens such files with torch.
#include "format/torch_pickle_write.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "format/archive_file.hpp"
#include "format/zip_directory.hpp"

namespace ckpt::format {

namespace {

PickledTensor pickled_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                             std::string storage) {
  PickledTensor made;
  made.name = std::move(name);
  made.dtype = dtype;
  made.storage_bytes = tensor_bytes(dtype, shape).value();
  made.shape = std::move(shape);
  made.storage = std::move(storage);
  return made;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("torch pickle: tensors of every type are read as they were written", "[unit][format]") {
  std::vector<PickledTensor> tensors;
  for (std::uint8_t number = 0; number <= static_cast<std::uint8_t>(DType::c64); ++number)
    tensors.push_back(pickled_tensor("t" + std::to_string(number), static_cast<DType>(number),
                                     {2, 3}, std::to_string(number)));
  tensors.push_back(pickled_tensor("scalar", DType::f32, {}, "s"));
  tensors.push_back(pickled_tensor("empty", DType::bf16, {3, 0, 2}, "e"));
  tensors.push_back(pickled_tensor("255", DType::u8, {255, 256}, "a"));
  tensors.push_back(pickled_tensor("65536", DType::u8, {65536}, "b"));
  tensors.push_back(pickled_tensor("wide", DType::f32, {std::int64_t{1} << 33, 3}, "c"));
  tensors.push_back(pickled_tensor("most", DType::i8, {INT32_MAX}, "d"));
  tensors.push_back(pickled_tensor("name \"quoted\" \u00e9\n", DType::f32, {1}, "q"));
  const auto pickle = write_torch_pickle(tensors);
  const auto read = read_torch_pickle(pickle);
  REQUIRE((read ? "" : read.error().message()) == "");
  CHECK(read->left_out == 0);
  REQUIRE(read->tensors.size() == tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    CAPTURE(tensors[index].name);
    CHECK(read->tensors[index].name == tensors[index].name);
    CHECK(read->tensors[index].dtype == tensors[index].dtype);
    CHECK(read->tensors[index].shape == tensors[index].shape);
    CHECK(read->tensors[index].storage == tensors[index].storage);
    CHECK(read->tensors[index].storage_bytes == tensors[index].storage_bytes);
    CHECK(read->tensors[index].offset == 0);
  }
}

TEST_CASE("archive file: entries that are written one by one make a sound archive",
          "[unit][format]") {
  const std::vector<std::string> contents = {"a pickle", std::string(5000, 'x'), "", "3\n"};
  std::vector<FileEntry> entries;
  for (std::size_t index = 0; index < contents.size(); ++index)
    entries.push_back({"data/" + std::to_string(index), contents[index].size(),
                       crc32(bytes_of(contents[index]))});
  const auto begin = place_entries(entries);
  REQUIRE(begin);
  const auto end = archive_end(entries, *begin);
  std::vector<std::byte> file(*begin + end.size());
  const auto put = [&](std::uint64_t at, std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(file.data() + at, bytes.data(), bytes.size());
  };
  for (std::size_t index = 0; index < contents.size(); ++index) {
    put(entries[index].data, bytes_of(contents[index]));
    put(entries[index].header, entry_header(entries[index]));
  }
  put(*begin, end);
  const auto tail = std::span<const std::byte>(file).last(std::min(file.size(), zip_tail_bytes));
  const auto found = find_zip_end(tail, file.size());
  REQUIRE(found);
  const auto directory = parse_zip_directory(
      std::span(file).subspan(found->directory.offset, found->directory.bytes), *found);
  REQUIRE((directory ? "" : directory.error().message()) == "");
  REQUIRE(directory->size() == contents.size());
  for (std::size_t index = 0; index < contents.size(); ++index) {
    CHECK((*directory)[index].name == "archive/data/" + std::to_string(index));
    CHECK((*directory)[index].crc == entries[index].crc);
  }
  entries[0].name.clear();
  CHECK_FALSE(place_entries(entries));
}

}  // namespace ckpt::format
