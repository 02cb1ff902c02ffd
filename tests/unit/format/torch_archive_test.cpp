// Goal:   an archive in the Slot is a zip file that others read, wherever its entries end.
// Method: archives of entries around a page are laid out, filled and finished; a reader written
//         here from the zip specification walks directory and headers and checks every claim.
#include "format/torch_archive.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/checksum.hpp"
#include "base/units.hpp"
#include "format/layout.hpp"
#include "format/layout_validation.hpp"

namespace ckpt::format {

namespace {

TensorSpec archive_entry(std::string name, std::int64_t bytes) {
  return {"model.pt//" + std::move(name), DType::u8, {bytes}, "", "model.pt"};
}

template <class Integer>
Integer read_integer(std::span<const std::byte> file, std::uint64_t offset) {
  Integer value{};
  REQUIRE(offset + sizeof value <= file.size());
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

// The data of each entry, found through the directory.
std::vector<std::pair<std::string, std::span<const std::byte>>> read_zip(
    std::span<const std::byte> file) {
  std::vector<std::pair<std::string, std::span<const std::byte>>> found;
  const std::uint64_t end = file.size() - 22;
  REQUIRE(read_integer<std::uint32_t>(file, end) == 0x06054b50);
  const auto count = read_integer<std::uint16_t>(file, end + 10);
  std::uint64_t record = read_integer<std::uint32_t>(file, end + 16);
  REQUIRE(record + read_integer<std::uint32_t>(file, end + 12) == end);
  for (int i = 0; i < count; ++i) {
    REQUIRE(read_integer<std::uint32_t>(file, record) == 0x02014b50);
    const auto crc = read_integer<std::uint32_t>(file, record + 16);
    const auto bytes = read_integer<std::uint32_t>(file, record + 20);
    const auto name_bytes = read_integer<std::uint16_t>(file, record + 28);
    const auto header = read_integer<std::uint32_t>(file, record + 42);
    const std::string name(reinterpret_cast<const char*>(file.data() + record + 46), name_bytes);
    REQUIRE(read_integer<std::uint32_t>(file, header) == 0x04034b50);
    REQUIRE(read_integer<std::uint32_t>(file, header + 14) == crc);
    const std::uint64_t data = header + 30 + read_integer<std::uint16_t>(file, header + 26) +
                               read_integer<std::uint16_t>(file, header + 28);
    const auto content = file.subspan(data, bytes);
    REQUIRE(crc32(content) == crc);
    REQUIRE(data % (bytes < page_bytes ? 64 : page_bytes) == 0);
    found.emplace_back(name, content);
    record += 46u + name_bytes + read_integer<std::uint16_t>(file, record + 30);
  }
  return found;
}

}  // namespace

TEST_CASE("torch archive: a zip reader finds every entry", "[unit][format]") {
  const std::vector<std::int64_t> sizes = {0, 1, 63, 64, 4095, 4096, 4097, 3 * 4096 + 5};
  std::vector<TensorSpec> specs = {{"weight", DType::f32, {1000}, "", ""}};
  for (const std::int64_t size : sizes)
    specs.push_back(archive_entry("data/" + std::to_string(size), size));
  const Layout layout = make_layout(specs, 3, 64).value();
  const Status valid = validate(layout);
  INFO((valid ? "" : valid.error().message()));
  REQUIRE(valid);
  REQUIRE(layout.has_archives());
  REQUIRE(layout.members.size() == 3);
  REQUIRE(layout.members[1].file_name == "rank-00003.pta");

  std::vector<std::byte> slot(layout.slot_bytes);
  for (const TensorPlace& place : layout.tensors)
    for (std::uint64_t i = 0; i < place.extent.bytes; ++i)
      slot[place.extent.offset + i] = static_cast<std::byte>(place.extent.bytes + 3 * i);
  const std::vector<std::byte> before = slot;
  finish_archives(layout, slot);

  for (const TensorPlace& place : layout.tensors)
    REQUIRE(std::memcmp(slot.data() + place.extent.offset, before.data() + place.extent.offset,
                        place.extent.bytes) == 0);
  const Extent extent = layout.members[1].extent;
  const auto file = std::span<const std::byte>(slot).subspan(extent.offset, extent.bytes);
  const auto found = read_zip(file);
  REQUIRE(found.size() == sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE(found[i].first == "archive/data/" + std::to_string(sizes[i]));
    REQUIRE(found[i].second.size() == static_cast<std::size_t>(sizes[i]));
  }
}

TEST_CASE("torch archive: tied tensors stay out of it", "[unit][format]") {
  const std::vector<TensorSpec> specs = {
      {"a", DType::u8, {10}, "", ""}, archive_entry("data/0", 10), {"b", DType::u8, {10}, "a", ""}};
  const Layout layout = make_layout(specs, 0, 0).value();
  const Status valid = validate(layout);
  INFO((valid ? "" : valid.error().message()));
  REQUIRE(valid);
  REQUIRE(layout.tensors.back().name == "b");
  REQUIRE(layout.tensors.back().extent == layout.tensors.front().extent);
  REQUIRE(layout.tensors[1].member == 1);

  std::vector<TensorSpec> tied_to_entry = {archive_entry("data/0", 10),
                                           {"b", DType::u8, {10}, "model.pt//data/0", ""}};
  REQUIRE_FALSE(make_layout(tied_to_entry, 0, 0));
}

// 0xFFFFFFFF in a field of 32 bits says that the size is elsewhere, so that very size must be, too.
TEST_CASE("torch archive: the first size that needs a wide field has one", "[unit][format]") {
  const auto bytes_with = [](std::uint64_t entry_bytes) {
    std::vector<TensorPlace> entries(1);
    entries[0].name = "archive//data";
    entries[0].extent.bytes = entry_bytes;
    return place_archive(entries, 0).value();
  };
  constexpr std::uint64_t wide = UINT32_MAX;
  constexpr std::uint64_t directory_extra = 4 + 2 * 8;
  CHECK(bytes_with(wide - 1) - bytes_with(wide - 2) == 1);
  CHECK(bytes_with(wide) - bytes_with(wide - 1) == 1 + directory_extra);
  CHECK(bytes_with(wide + 1) - bytes_with(wide) == 1);
}

TEST_CASE("torch archive: more than the most is refused", "[unit][format]") {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i <= archives_max; ++i) {
    const std::string archive = "file" + std::to_string(i);
    specs.push_back({archive + "//data.pkl", DType::u8, {1}, "", archive});
  }
  const auto refused = make_layout(specs, 0, 0);
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code() == Errc::exhausted);
  specs.pop_back();
  REQUIRE(make_layout(specs, 0, 16));

  const std::vector<TensorSpec> unnamed = {archive_entry("", 1)};
  REQUIRE(make_layout(unnamed, 0, 0).error().code() == Errc::invalid_argument);
}

}  // namespace ckpt::format
