// Goal:   the ring, the pool and the tests' memory are one FileSystem, and none of them can be told
//         from the others by what it returns.
// Method: the same cases for the three: sizes around a page and around a Chunk, unaligned offsets
//         and addresses, every rename mode, every class of error, links, many calls at once.
#include "contract/file_system_contract.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/random.hpp"
#include "base/units.hpp"
#include "contract/file_system_subjects.hpp"
#include "os/path.hpp"
#include "support/run_task.hpp"

namespace ckpt::test {

using os::Caching;
using os::EntryKind;
using os::RenameMode;

namespace {

using Bytes = std::vector<std::byte>;

// Memory that starts `shift` bytes after a page boundary, filled from a seed.
class PageMemory {
 public:
  PageMemory(std::uint64_t bytes, std::uint64_t shift, std::uint64_t seed)
      : storage_(bytes + shift + page_bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(storage_.data());
    bytes_ = std::span(storage_).subspan(align_up(start, page_bytes) - start + shift, bytes);
    Random random(seed);
    std::size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(bytes_.data() + at, &word, 8);
    }
    for (; at < bytes; ++at) bytes_[at] = static_cast<std::byte>(random.next());
  }
  static PageMemory zeros(std::uint64_t bytes) {
    PageMemory memory(bytes, 0, 1);
    std::memset(memory.bytes_.data(), 0, bytes);
    return memory;
  }
  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> view() const { return bytes_; }
  bool operator==(const PageMemory& other) const {
    return bytes_.size() == other.bytes_.size() &&
           std::memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0;
  }

 private:
  Bytes storage_;
  std::span<std::byte> bytes_;
};

Task<void> write_file(os::FileSystem& files, std::string path, std::uint64_t offset,
                      std::span<const std::byte> bytes) {
  CKPT_CO_TRY(auto file, co_await files.create(path, Caching::direct));
  CKPT_CO_CHECK(co_await file->allocate(offset + bytes.size()));
  CKPT_CO_CHECK(co_await file->write_at(offset, bytes));
  CKPT_CO_CHECK(co_await file->truncate(offset + bytes.size()));
  CKPT_CO_CHECK(co_await file->sync_data());
  CKPT_CO_CHECK(co_await file->close());
  co_return Status();
}

Task<void> read_file(os::FileSystem& files, std::string path, std::uint64_t offset,
                     std::span<std::byte> bytes) {
  CKPT_CO_TRY(auto file, co_await files.open_read(path, Caching::direct));
  CKPT_CO_CHECK(co_await file->read_at(offset, bytes));
  CKPT_CO_CHECK(co_await file->close());
  co_return Status();
}

Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

// The calls of the contract, each run to its end.
class Calls {
 public:
  explicit Calls(FileSystemUnderTest& subject) : subject_(subject) {}

  std::string at(std::string_view name) const { return os::beneath(subject_.directory(), name); }
  template <class T>
  Result<T> run(Task<T> task) {
    return run_task(subject_.context(), std::move(task));
  }
  Status write_small(std::string_view name, std::string_view text) {
    return run(subject_.files().write_small(at(name), to_bytes(text)));
  }
  std::string read_small(std::string_view name) {
    auto bytes = run(subject_.files().read_small(at(name), MiB));
    if (!bytes) return "error: " + bytes.error().message();
    return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }
  Status rename(std::string_view from, std::string_view to, RenameMode mode) {
    return run(subject_.files().rename(at(from), at(to), mode));
  }
  Status make_directory(std::string_view name) {
    return run(subject_.files().make_directory(at(name)));
  }

 private:
  FileSystemUnderTest& subject_;
};

}  // namespace

void check_whole_spans(FileSystemUnderTest& subject) {
  Calls calls(subject);
  int number = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, 4 * KiB - 1, 4 * KiB,
                                    4 * KiB + 1, 4 * MiB - 1, 4 * MiB, 4 * MiB + 1}) {
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, 4 * KiB}) {
      for (const std::uint64_t shift : {std::uint64_t{0}, std::uint64_t{1}}) {
        CAPTURE(bytes, offset, shift);
        const std::string path = calls.at("span-" + std::to_string(number++));
        const PageMemory source(bytes, shift, bytes + 1);
        const Status written = calls.run(write_file(subject.files(), path, offset, source.view()));
        REQUIRE((written ? "" : written.error().message()) == "");
        const auto status = calls.run(subject.files().status(path));
        REQUIRE(status.has_value());
        REQUIRE(status->bytes == offset + bytes);
        REQUIRE(status->kind == EntryKind::file);
        PageMemory target(bytes, 1 - shift, 7);
        const Status read = calls.run(read_file(subject.files(), path, offset, target.bytes()));
        REQUIRE((read ? "" : read.error().message()) == "");
        REQUIRE((source == target));
        REQUIRE(calls.run(subject.files().remove_file(path)).has_value());
      }
    }
  }
}

void check_reading_past_the_end(FileSystemUnderTest& subject) {
  Calls calls(subject);
  const std::string path = calls.at("short");
  for (const std::uint64_t bytes : {std::uint64_t{0}, 4 * KiB - 1, 4 * KiB, 8 * KiB + 1}) {
    CAPTURE(bytes);
    const PageMemory source(bytes, 0, 3);
    REQUIRE(calls.run(write_file(subject.files(), path, 0, source.view())).has_value());
    PageMemory target(16 * KiB, 0, 4);
    for (const std::uint64_t wanted : {bytes + 1, 16 * KiB}) {
      const Status read =
          calls.run(read_file(subject.files(), path, 0, target.bytes().first(wanted)));
      REQUIRE_FALSE(read.has_value());
      REQUIRE(read.error().code() == Errc::corruption);
    }
    const Status beyond =
        calls.run(read_file(subject.files(), path, 64 * KiB, target.bytes().first(4 * KiB)));
    REQUIRE_FALSE(beyond.has_value());
    REQUIRE(beyond.error().code() == Errc::corruption);
    REQUIRE(calls.run(subject.files().remove_file(path)).has_value());
  }
}

void check_creation_is_exclusive(FileSystemUnderTest& subject) {
  Calls calls(subject);
  REQUIRE(calls.write_small("once", "first").has_value());
  const auto again = calls.run(subject.files().create(calls.at("once"), Caching::direct));
  REQUIRE_FALSE(again.has_value());
  REQUIRE(again.error().code() == Errc::invalid_argument);
  REQUIRE(again.error().cause() == std::errc::file_exists);
  const Status small = calls.write_small("once", "second");
  REQUIRE_FALSE(small.has_value());
  REQUIRE(small.error().cause() == std::errc::file_exists);
  REQUIRE(calls.read_small("once") == "first");
  const auto orphan = calls.run(subject.files().create(calls.at("none/x"), Caching::direct));
  REQUIRE_FALSE(orphan.has_value());
  REQUIRE(orphan.error().code() == Errc::not_found);
  const auto absent = calls.run(subject.files().open_read(calls.at("absent"), Caching::direct));
  REQUIRE_FALSE(absent.has_value());
  REQUIRE(absent.error().code() == Errc::not_found);
  REQUIRE(absent.error().text().find("absent") != std::string::npos);
}

void check_renames(FileSystemUnderTest& subject) {
  Calls calls(subject);
  REQUIRE(calls.write_small("a", "A").has_value());
  REQUIRE(calls.write_small("b", "B").has_value());
  const Status refused = calls.rename("a", "b", RenameMode::no_replace);
  REQUIRE_FALSE(refused.has_value());
  REQUIRE(refused.error().code() == Errc::invalid_argument);
  REQUIRE(refused.error().cause() == std::errc::file_exists);
  REQUIRE(calls.rename("a", "b", RenameMode::exchange).has_value());
  REQUIRE(calls.read_small("a") == "B");
  REQUIRE(calls.read_small("b") == "A");
  REQUIRE(calls.rename("a", "b", RenameMode::replace).has_value());
  REQUIRE(calls.read_small("b") == "B");
  REQUIRE(calls.rename("b", "c", RenameMode::no_replace).has_value());
  REQUIRE(calls.read_small("c") == "B");
  REQUIRE(calls.rename("a", "d", RenameMode::replace).error().code() == Errc::not_found);

  REQUIRE(calls.make_directory("one").has_value());
  REQUIRE(calls.make_directory("two").has_value());
  REQUIRE(calls.write_small("one/inside", "1").has_value());
  REQUIRE(calls.write_small("two/inside", "2").has_value());
  REQUIRE(calls.rename("one", "two", RenameMode::no_replace).error().cause() ==
          std::errc::file_exists);
  REQUIRE(calls.rename("one", "two", RenameMode::exchange).has_value());
  REQUIRE(calls.read_small("two/inside") == "1");
  REQUIRE_FALSE(calls.rename("one", "two", RenameMode::replace).has_value());
  REQUIRE(calls.rename("one", "three", RenameMode::no_replace).has_value());
  REQUIRE(calls.read_small("three/inside") == "2");
}

void check_directories(FileSystemUnderTest& subject) {
  Calls calls(subject);
  const auto empty = calls.run(subject.files().list(calls.at(".")));
  REQUIRE(empty.has_value());
  REQUIRE(empty->empty());
  REQUIRE(calls.make_directory("z").has_value());
  REQUIRE(calls.make_directory("z").has_value());
  REQUIRE(calls.write_small("m", "").has_value());
  REQUIRE_FALSE(calls.make_directory("m").has_value());
  REQUIRE(calls.make_directory("none/deeper").error().code() == Errc::not_found);
  subject.make_link(subject.directory() + "/a-link", "m");
  const auto entries = calls.run(subject.files().list(calls.at(".")));
  REQUIRE(entries.has_value());
  REQUIRE(entries->size() == 3);
  REQUIRE((*entries)[0].name == "a-link");
  REQUIRE((*entries)[0].kind == EntryKind::symlink);
  REQUIRE((*entries)[1].name == "m");
  REQUIRE((*entries)[1].kind == EntryKind::file);
  REQUIRE((*entries)[2].name == "z");
  REQUIRE((*entries)[2].kind == EntryKind::directory);
  REQUIRE(calls.run(subject.files().sync_directory(calls.at("."))).has_value());
  REQUIRE(calls.run(subject.files().list(calls.at("none"))).error().code() == Errc::not_found);
  REQUIRE(calls.run(subject.files().sync_directory(calls.at("none"))).error().code() ==
          Errc::not_found);
  REQUIRE(calls.run(subject.files().status(calls.at("none"))).error().code() == Errc::not_found);

  REQUIRE(calls.write_small("z/inside", "x").has_value());
  const Status full = calls.run(subject.files().remove_directory(calls.at("z")));
  REQUIRE_FALSE(full.has_value());
  REQUIRE(full.error().cause() == std::errc::directory_not_empty);
  REQUIRE_FALSE(calls.run(subject.files().remove_file(calls.at("z"))).has_value());
  REQUIRE(calls.run(subject.files().remove_file(calls.at("z/inside"))).has_value());
  REQUIRE(calls.run(subject.files().remove_directory(calls.at("z"))).has_value());
  REQUIRE(calls.run(subject.files().remove_directory(calls.at("z"))).error().code() ==
          Errc::not_found);
  const auto space = calls.run(subject.files().space(subject.directory()));
  REQUIRE(space.has_value());
  REQUIRE(space->bytes_free <= space->bytes_total);
  REQUIRE(space->bytes_total > 0);
}

void check_small_files(FileSystemUnderTest& subject) {
  Calls calls(subject);
  REQUIRE(calls.write_small("empty", "").has_value());
  REQUIRE(calls.read_small("empty").empty());
  REQUIRE(calls.write_small("ten", "0123456789").has_value());
  REQUIRE(calls.run(subject.files().read_small(calls.at("ten"), 10)).has_value());
  REQUIRE(calls.run(subject.files().read_small(calls.at("ten"), 9)).error().code() ==
          Errc::corruption);
  for (const std::string_view line : {"one\n", "two\n", "three\n"}) {
    const auto syncing = line == "two\n" ? os::Syncing::later : os::Syncing::now;
    REQUIRE(calls.run(subject.files().append_small(calls.at("log"), to_bytes(line), syncing))
                .has_value());
  }
  REQUIRE(calls.read_small("log") == "one\ntwo\nthree\n");
  REQUIRE(calls.make_directory("folder").has_value());
  REQUIRE_FALSE(
      calls.run(subject.files().append_small(calls.at("folder"), to_bytes("x"), os::Syncing::now))
          .has_value());
  REQUIRE_FALSE(calls.run(subject.files().read_small(calls.at("folder"), 9)).has_value());
}

void check_links_are_refused(FileSystemUnderTest& subject) {
  Calls calls(subject);
  REQUIRE(calls.write_small("target", "untouched").has_value());
  REQUIRE(calls.make_directory("real").has_value());
  REQUIRE(calls.write_small("real/file", "untouched").has_value());
  subject.make_link(subject.directory() + "/link", "target");
  subject.make_link(subject.directory() + "/folder", "real");
  auto& files = subject.files();
  REQUIRE_FALSE(calls.run(files.open_read(calls.at("link"), Caching::direct)).has_value());
  REQUIRE_FALSE(calls.run(files.read_small(calls.at("link"), MiB)).has_value());
  REQUIRE_FALSE(
      calls.run(files.append_small(calls.at("link"), to_bytes("x"), os::Syncing::now)).has_value());
  REQUIRE_FALSE(calls.write_small("link", "x").has_value());
  REQUIRE_FALSE(calls.run(files.read_small(calls.at("folder/file"), MiB)).has_value());
  REQUIRE_FALSE(calls.run(files.remove_file(calls.at("folder/file"))).has_value());
  REQUIRE_FALSE(calls.write_small("folder/new", "x").has_value());
  REQUIRE_FALSE(calls.run(files.list(calls.at("folder"))).has_value());
  REQUIRE_FALSE(calls.run(files.read_small(calls.at("real/../target"), MiB)).has_value());
  const auto status = calls.run(files.status(calls.at("link")));
  REQUIRE(status.has_value());
  REQUIRE(status->kind == EntryKind::symlink);
  REQUIRE(calls.run(files.remove_file(calls.at("link"))).has_value());
  REQUIRE(calls.read_small("target") == "untouched");
  REQUIRE(calls.read_small("real/file") == "untouched");
}

namespace {

DetachedTask write_into(std::shared_ptr<os::File> file, std::uint64_t offset,
                        std::span<const std::byte> bytes, int& done) {
  const Status written = co_await file->write_at(offset, bytes);
  if (written) ++done;
}

}  // namespace

void check_identity(FileSystemUnderTest& subject) {
  Calls calls(subject);
  const auto status = [&](const char* name) {
    const auto found = calls.run(subject.files().status(calls.at(name)));
    REQUIRE(found.has_value());
    return *found;
  };
  const std::vector<std::byte> text(5, std::byte{'a'});
  REQUIRE(calls.run(subject.files().write_small(calls.at("first"), text)).has_value());
  REQUIRE(calls.run(subject.files().write_small(calls.at("second"), text)).has_value());
  const os::FileStatus first = status("first");
  CHECK(first == status("first"));
  CHECK(first.inode != status("second").inode);
  CHECK(first.device == status("second").device);
  REQUIRE(calls.run(subject.files().make_directory(calls.at("below"))).has_value());
  CHECK(status("below").mount == status(".").mount);
  CHECK(status("second").modified_ns >= first.modified_ns);
  CHECK(status("second").changed_ns >= first.changed_ns);
  CHECK(first.changed_ns > 0);
  // The same size, the same moment, the same name: not the same file.
  REQUIRE(
      calls.run(subject.files().rename(calls.at("second"), calls.at("first"), RenameMode::replace))
          .has_value());
  const os::FileStatus replaced = status("first");
  CHECK_FALSE(replaced == first);
  CHECK(replaced.inode != first.inode);
  REQUIRE(calls.run(subject.files().append_small(calls.at("first"), text, os::Syncing::now))
              .has_value());
  const os::FileStatus longer = status("first");
  CHECK(longer.inode == replaced.inode);
  CHECK(longer.bytes == 2 * text.size());
  CHECK_FALSE(longer == replaced);
}

namespace {

constexpr std::uint64_t block_bytes = 4 * KiB;

// A file of four blocks, and one of the same size into which its blocks are cloned.
class CloneScene {
 public:
  explicit CloneScene(FileSystemUnderTest& subject) : calls(subject), files(subject.files()) {
    REQUIRE(calls.run(write_file(files, calls.at("source"), 0, old.view())).has_value());
    auto created = calls.run(files.create(calls.at("target"), Caching::direct));
    REQUIRE(created.has_value());
    target = std::move(created).value();
    REQUIRE(calls.run(target->truncate(4 * block_bytes)).has_value());
    source = {calls.at("source"), status("source")};
  }
  os::FileStatus status(const char* name) {
    const auto found = calls.run(files.status(calls.at(name)));
    REQUIRE(found.has_value());
    return *found;
  }
  Status clone(os::CloneRange range) { return calls.run(target->clone_at(range, source)); }
  Errc refusal(os::CloneRange range) {
    const Status done = clone(range);
    REQUIRE_FALSE(done.has_value());
    return done.error().code();
  }
  // The target's content, read anew.
  PageMemory content() {
    REQUIRE(calls.run(target->sync_data()).has_value());
    PageMemory found(4 * block_bytes, 0, 9);
    REQUIRE(calls.run(read_file(files, calls.at("target"), 0, found.bytes())).has_value());
    return found;
  }

  Calls calls;
  os::FileSystem& files;
  const PageMemory old{4 * block_bytes, 0, 21};
  std::unique_ptr<os::File> target;
  os::CloneSource source;
};

}  // namespace

void check_clones(FileSystemUnderTest& subject) {
  CloneScene scene(subject);
  const os::CloneRange two_blocks{block_bytes, block_bytes, 2 * block_bytes};
  CHECK(scene.clone({0, 0, 0}).has_value());
  PageMemory expected(4 * block_bytes, 0, 22);
  REQUIRE(scene.calls.run(scene.target->write_at(0, expected.view())).has_value());
  const Status cloned = scene.clone(two_blocks);
  if (!cloned) {
    REQUIRE_FALSE(subject.must_clone());
    CHECK(cloned.error().code() == Errc::unsupported);
    CHECK((scene.content() == expected));
    return;
  }
  std::memcpy(expected.bytes().data() + block_bytes, scene.old.view().data() + block_bytes,
              2 * block_bytes);
  CHECK((scene.content() == expected));
  // To the end, from another place, and over what is there.
  REQUIRE(scene.clone({0, 3 * block_bytes, block_bytes}).has_value());
  std::memcpy(expected.bytes().data() + 3 * block_bytes, scene.old.view().data(), block_bytes);
  CHECK((scene.content() == expected));
  // A later write changes the one file alone.
  const PageMemory other(block_bytes, 0, 23);
  REQUIRE(scene.calls.run(scene.target->write_at(block_bytes, other.view())).has_value());
  std::memcpy(expected.bytes().data() + block_bytes, other.view().data(), block_bytes);
  CHECK((scene.content() == expected));
  PageMemory source(4 * block_bytes, 0, 9);
  REQUIRE(scene.calls.run(read_file(scene.files, scene.source.path, 0, source.bytes())));
  CHECK((source == scene.old));
  // It is still the same file, so that the next one can share with it, too.
  CHECK(scene.status("source") == scene.source.expected);
  CHECK(scene.refusal({1, 1, block_bytes}) == Errc::unsupported);
  CHECK(scene.refusal({block_bytes, 0, 4 * block_bytes}) == Errc::unsupported);
}

void check_clones_of_others(FileSystemUnderTest& subject) {
  CloneScene scene(subject);
  Calls& calls = scene.calls;
  const os::CloneRange range{0, 0, 4 * block_bytes};
  const PageMemory other(4 * block_bytes, 0, 24);
  REQUIRE(calls.run(write_file(scene.files, calls.at("other"), 0, other.view())).has_value());
  REQUIRE(calls.make_directory("real").has_value());
  REQUIRE(calls.run(write_file(scene.files, calls.at("real/other"), 0, other.view())));
  SECTION("removed") {
    REQUIRE(calls.run(scene.files.remove_file(scene.source.path)).has_value());
    CHECK(scene.refusal(range) == Errc::not_found);
  }
  SECTION("replaced by one of the same size") {
    REQUIRE(calls.rename("other", "source", RenameMode::replace).has_value());
    CHECK(scene.refusal(range) == Errc::not_found);
  }
  SECTION("longer than it was") {
    REQUIRE(
        calls.run(scene.files.append_small(scene.source.path, to_bytes("x"), os::Syncing::now)));
    CHECK(scene.refusal(range) == Errc::not_found);
  }
  SECTION("a link to it in its place") {
    REQUIRE(calls.rename("source", "moved", RenameMode::replace).has_value());
    subject.make_link(subject.directory() + "/source", "moved");
    CHECK_FALSE(scene.clone(range).has_value());
  }
  SECTION("behind a link to its directory") {
    subject.make_link(subject.directory() + "/folder", "real");
    scene.source = {calls.at("folder/other"), scene.status("real/other")};
    CHECK_FALSE(scene.clone(range).has_value());
  }
  // Nothing of it has come.
  CHECK((scene.content() == PageMemory::zeros(4 * block_bytes)));
}

void check_many_in_flight(FileSystemUnderTest& subject) {
  Calls calls(subject);
  constexpr std::uint64_t piece_bytes = 64 * KiB;
  constexpr std::size_t pieces = 300;  // More than the ring is deep.
  const PageMemory source(piece_bytes * pieces, 0, 11);
  auto created = calls.run(subject.files().create(calls.at("many"), Caching::direct));
  REQUIRE(created.has_value());
  const std::shared_ptr<os::File> file = std::move(created).value();
  int done = 0;
  for (std::size_t index = 0; index < pieces; ++index) {
    const std::uint64_t offset = index * piece_bytes;
    run_detached(subject.context().get_executor(),
                 write_into(file, offset, source.view().subspan(offset, piece_bytes), done));
  }
  subject.context().restart();
  subject.context().run();
  REQUIRE(done == static_cast<int>(pieces));
  REQUIRE(calls.run(file->sync_data()).has_value());
  REQUIRE(calls.run(file->close()).has_value());
  PageMemory target(piece_bytes * pieces, 0, 12);
  REQUIRE(calls.run(read_file(subject.files(), calls.at("many"), 0, target.bytes())).has_value());
  REQUIRE((source == target));
}

namespace {

FileSystemSubject some_subject() {
  return make_file_system_subject(GENERATE(as<std::string>(), "memory", "pool", "ring",
                                           "ring on tmpfs", "pool on a disk that shares",
                                           "ring on a disk that shares"));
}

}  // namespace

TEST_CASE("file system: a span is written and read whole, whatever its size and alignment",
          "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_whole_spans(*subject);
}
TEST_CASE("file system: reading past the end is corruption", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_reading_past_the_end(*subject);
}
TEST_CASE("file system: a file is created once", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_creation_is_exclusive(*subject);
}
TEST_CASE("file system: a rename replaces, refuses or exchanges, as asked", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_renames(*subject);
}
TEST_CASE("file system: directories list sorted and are removed only when empty",
          "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_directories(*subject);
}
TEST_CASE("file system: small files are read within a limit and grow by appending",
          "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_small_files(*subject);
}
TEST_CASE("file system: a file that was replaced or written to has another status",
          "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_identity(*subject);
}
TEST_CASE("file system: a range is shared with the file that is meant, or refused",
          "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_clones(*subject);
}
TEST_CASE("file system: nothing is shared with a file that is another by now", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_clones_of_others(*subject);
}
TEST_CASE("file system: links below the root are never followed", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_links_are_refused(*subject);
}
TEST_CASE("file system: more calls than the ring is deep all end", "[contract][os]") {
  if (const FileSystemSubject subject = some_subject()) check_many_in_flight(*subject);
}

}  // namespace ckpt::test
