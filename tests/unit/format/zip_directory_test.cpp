// Goal:   a zip file is believed only where the file bears it out.
// Method: archives as our own writer makes them, which stock torch opens; then each field damaged:
//         compressed, encrypted, overlapping, cut off, with entries outside of the file.
#include "format/zip_directory.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/random.hpp"
#include "format/torch_archive.hpp"

namespace ckpt::format {

namespace {

using Bytes = std::vector<std::byte>;

Bytes archive_of(const std::vector<std::pair<std::string, std::uint64_t>>& entries) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, bytes] : entries) {
    TensorSpec spec;
    spec.name = "a.pt//" + name;
    spec.shape = {static_cast<std::int64_t>(bytes)};
    spec.archive = "a.pt";
    specs.push_back(spec);
  }
  const Layout layout = make_layout(specs, 0, 0).value();
  Bytes slot(layout.slot_bytes);
  for (const TensorPlace& place : layout.tensors)
    for (std::uint64_t at = 0; at < place.extent.bytes; ++at)
      slot[place.extent.offset + at] = static_cast<std::byte>(at % 251);
  finish_archives(layout, slot);
  for (const Member& member : layout.members) {
    if (member.kind != MemberKind::torch) continue;
    const auto extent = std::span(slot).subspan(member.extent.offset, member.extent.bytes);
    return {extent.begin(), extent.end()};
  }
  return {};
}

struct Read {
  std::vector<ZipEntry> entries;
  std::vector<Extent> data;
};
Result<Read> read_entries(std::span<const std::byte> file) {
  const auto tail = file.last(std::min(file.size(), zip_tail_bytes));
  CKPT_TRY(const ZipEnd end, find_zip_end(tail, file.size()));
  Read out;
  CKPT_TRY(out.entries,
           parse_zip_directory(file.subspan(end.directory.offset, end.directory.bytes), end));
  for (std::size_t index = 0; index < out.entries.size(); ++index) {
    const std::uint64_t behind =
        index + 1 < out.entries.size() ? out.entries[index + 1].header : end.directory.offset;
    const auto header = file.subspan(out.entries[index].header, zip_local_header_bytes);
    CKPT_TRY(const Extent data, zip_data(header, out.entries[index], behind));
    out.data.push_back(data);
  }
  return out;
}

std::size_t find(const Bytes& file, std::uint32_t magic) {
  for (std::size_t at = 0; at + 4 <= file.size(); ++at)
    if (std::memcmp(file.data() + at, &magic, 4) == 0) return at;
  FAIL("no such record");
  return 0;
}
constexpr std::uint32_t record = 0x02014b50, last = 0x06054b50;

}  // namespace

TEST_CASE("zip directory: entries lie where our writer put them", "[unit][format]") {
  const Bytes file = archive_of({{"data.pkl", 10}, {"data/0", 5000}, {"data/1", 0}});
  const auto found = read_entries(file);
  REQUIRE((found ? "" : found.error().message()) == "");
  REQUIRE(found->entries.size() == 3);
  CHECK(found->entries[1].name == "archive/data/0");
  for (std::size_t index = 0; index < 3; ++index) {
    const Extent data = found->data[index];
    CHECK(data.bytes == found->entries[index].bytes);
    CHECK(crc32(std::span(file).subspan(data.offset, data.bytes)) == found->entries[index].crc);
  }
}

TEST_CASE("zip directory: an archive that torch.save never writes is refused", "[unit][format]") {
  Bytes file = archive_of({{"data.pkl", 10}, {"data/0", 5000}});
  const auto put = [&](std::size_t at, std::uint8_t value) { file[at] = std::byte{value}; };
  const std::size_t first = find(file, record), end = find(file, last);
  SECTION("a compressed entry") {
    put(first + 10, 8);
  }
  SECTION("an encrypted entry") {
    put(first + 8, 1);
  }
  SECTION("an entry of another disk") {
    put(first + 34, 1);
  }
  SECTION("a size that is not the stored one") {
    put(first + 20, 11);
  }
  SECTION("a compressed entry behind a directory that says otherwise") {
    put(8, 8);
  }
  SECTION("an entry over the next one") {
    put(first + 21, 0xff);
    put(first + 25, 0xff);
  }
  SECTION("an entry behind the end of the file") {
    put(first + 23, 0x7f);
    put(first + 27, 0x7f);
  }
  SECTION("an entry at another one's place") {
    put(first + 42, std::to_integer<std::uint8_t>(file[first + 42]) + 1);
  }
  SECTION("a name that reaches over the bytes") {
    put(27, 0x7f);
  }
  SECTION("fewer entries than are there") {
    put(end + 10, 1);
  }
  SECTION("more entries than are there") {
    put(end + 8, 3);
    put(end + 10, 3);
  }
  SECTION("a directory elsewhere") {
    put(end + 16, std::to_integer<std::uint8_t>(file[end + 16]) ^ 1);
  }
  SECTION("a comment") {
    put(end + 20, 1);
  }
  SECTION("bytes behind the end") {
    file.push_back(std::byte{0});
  }
  SECTION("a cut off file") {
    file.resize(file.size() - 1);
  }
  SECTION("no zip file") {
    file.assign(200, std::byte{'P'});
  }
  SECTION("next to nothing") {
    file.resize(5);
  }
  CHECK_FALSE(read_entries(file));
}

TEST_CASE("zip directory: two entries of one name are refused", "[unit][format]") {
  Bytes file = archive_of({{"data/0", 10}, {"data/1", 10}});
  std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  for (std::size_t at = text.find("data/1"); at != std::string::npos; at = text.find("data/1"))
    text[at + 5] = '0';
  std::memcpy(file.data(), text.data(), text.size());
  CHECK_FALSE(read_entries(file));
}

TEST_CASE("zip directory: random damage never makes it read outside of the file",
          "[unit][format]") {
  const Bytes good = archive_of({{"data.pkl", 10}, {"data/0", 300}, {"data/1", 40}});
  Random random(7);
  for (int round = 0; round < 20'000; ++round) {
    Bytes file = good;
    for (std::uint64_t flips = 1 + random.next() % 3; flips > 0; --flips)
      file[random.next() % file.size()] = static_cast<std::byte>(random.next());
    const auto found = read_entries(file);
    if (!found) continue;
    std::uint64_t end = 0;
    for (const Extent& data : found->data) {
      REQUIRE(data.offset >= end);
      REQUIRE(data.end() <= file.size());
      end = data.end();
    }
  }
}

}  // namespace ckpt::format
