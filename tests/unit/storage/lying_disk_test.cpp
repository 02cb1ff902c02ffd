// Goal:   a disk that acknowledges a write and keeps something else harms one step, which is
// noticed;
//         no byte of it is ever restored as good, and the step before is still there.
// Method: for each file of a step, each sector of 512 bytes, of 4 KiB, and the whole file have old
//         bytes (those of the step before, as after a write that was dropped), zeros, or bytes that
//         belong to another offset, another file or another step; before the step is published, and
//         after.
#include <set>

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

enum class Lie : std::uint8_t { old_bytes, zeros, other_offset, other_rank };
constexpr Lie lies[] = {Lie::old_bytes, Lie::zeros, Lie::other_offset, Lie::other_rank};

std::string name_of_other_rank(std::string name) {
  const auto at = name.find("rank-0000");
  if (at == std::string::npos) return {};
  char& digit = name[at + 9];
  digit = digit == '0' ? '1' : '0';
  return name;
}

// The disk's bytes in place of `length` bytes of `content` at `offset`.
std::string told(Lie lie, const std::string& content, const std::string& other, std::size_t offset,
                 std::size_t length) {
  std::string found = content;
  for (std::size_t index = 0; index < length; ++index) {
    char& byte = found[offset + index];
    const std::size_t elsewhere = (offset + index + length) % content.size();
    if (lie == Lie::zeros) byte = '\0';
    if (lie == Lie::other_offset) byte = content[elsewhere];
    const bool is_of_other = lie == Lie::old_bytes || lie == Lie::other_rank;
    if (is_of_other) byte = offset + index < other.size() ? other[offset + index] : '\0';
  }
  return found;
}

class LyingDisk : public StorageFixture {
 public:
  LyingDisk() {
    open();
    must_save(step_id(1));
    auto written = run(write_step(site, made_ranks(step_id(2)), ++attempts));
    REQUIRE(written);
    order = *written;
  }
  std::string old_path(const std::string& name) const {
    return "/scratch/job/step-000000001/" + name;
  }
  std::vector<std::string> names_in(const std::string& directory) const {
    std::vector<std::string> names;
    for (const std::string& path : disk.tree()) {
      if (path.starts_with(directory + "/") && !path.ends_with("/"))
        names.push_back(path.substr(directory.size() + 1));
    }
    return names;
  }

  // Step 2 is damaged, or not there: whoever looks finds step 1, and nobody gets its bytes.
  void require_not_good() {
    const std::string path = "/scratch/job/step-000000002";
    const auto report = run(storage::verify_checkpoint(files, path));
    REQUIRE((!report || !report->is_good()));
    const auto read = run(storage::read_manifest(site, "step-000000002"));
    bool is_any_rank_bad = !read;
    for (std::uint32_t rank = 0; read && rank < world_size; ++rank)
      is_any_rank_bad = !restores(path, *read, rank) || is_any_rank_bad;
    REQUIRE(is_any_rank_bad);
    const auto listed = catalog().checkpoints;
    REQUIRE(listed.front().at == step_id(1));
    REQUIRE(run(check_content(site, listed.front())));
  }

  storage::PublishOrder order;

 private:
  // False: it is refused. What is not refused must be what was saved.
  bool restores(const std::string& path, std::shared_ptr<const format::Manifest> manifest,
                std::uint32_t rank) {
    const auto record = run(storage::read_record(files, path, manifest, rank));
    if (!record) return false;
    const MadeShard expected = make_rank(step_id(2), rank);
    std::vector<std::byte> target((*record)->bytes);
    const storage::ShardPlace place = storage::shard_place(path, manifest->shards.at(rank));
    const Status done = run(storage::read_shard(files, place, *record, target, {}));
    if (!done) {
      REQUIRE(done.error().code() == Errc::corruption);
      return false;
    }
    REQUIRE(std::memcmp(target.data(), expected.bytes->data(), target.size()) == 0);
    return true;
  }
};

// Calls `check` with each thing that the disk may have in place of the file. Returns how many.
template <class Check>
std::size_t lie_about(LyingDisk& scene, const std::string& directory, const std::string& name,
                      Check check) {
  const std::string path = directory + "/" + name;
  const std::string content = scene.disk.content(path);
  REQUIRE_FALSE(content.empty());
  std::set<std::string> seen{content};
  for (const Lie lie : lies) {
    std::string other;
    if (lie == Lie::old_bytes) other = scene.disk.content(scene.old_path(name));
    if (lie == Lie::other_rank) {
      const std::string other_name = name_of_other_rank(name);
      if (other_name.empty()) continue;
      other = scene.disk.content(directory + "/" + other_name);
    }
    for (const std::size_t sector : {std::size_t{512}, std::size_t{4096}, content.size()}) {
      for (std::size_t offset = 0; offset < content.size(); offset += sector) {
        const std::size_t length = std::min(sector, content.size() - offset);
        const std::string found = told(lie, content, other, offset, length);
        if (!seen.insert(found).second) continue;
        CAPTURE(path, static_cast<int>(lie), sector, offset);
        scene.disk.put(path, found);
        check();
        scene.disk.put(path, content);
      }
    }
  }
  return seen.size() - 1;
}

}  // namespace

TEST_CASE_METHOD(LyingDisk, "lying disk: bytes that are not those of a published step are noticed",
                 "[unit][storage]") {
  REQUIRE(run(storage::publish(site, order)));
  const std::string directory = "/scratch/job/step-000000002";
  std::size_t cases = 0;
  for (const std::string& name : names_in(directory))
    cases += lie_about(*this, directory, name, [&] { require_not_good(); });
  CHECK(cases > 150);
  REQUIRE(whole_steps() == std::vector{step_id(1), step_id(2)});
}

TEST_CASE("lying disk: bytes that are not those of a written step never become good ones",
          "[unit][storage]") {
  LyingDisk first;
  const std::string directory = "/scratch/job/" + first.order.work_name;
  std::size_t cases = 0;
  std::size_t refused = 0;
  for (const std::string& name : first.names_in(directory)) {
    cases += lie_about(first, directory, name, [&] {
      LyingDisk scene;
      scene.disk.put(directory + "/" + name, first.disk.content(directory + "/" + name));
      const auto published = scene.run(storage::publish(scene.site, scene.order));
      refused += published ? 0 : 1;
      scene.require_not_good();
      scene.discard_stale();
      scene.must_save(step_id(3));
      REQUIRE(scene.run(check_content(scene.site, scene.catalog().checkpoints.back())));
      REQUIRE(scene.catalog().checkpoints.back().at == step_id(3));
    });
  }
  CHECK(cases > 100);
  CHECK(refused > 0);
  CHECK(refused < cases);  // Nobody reads all bytes of a step before it is published.
}

}  // namespace ckpt::test
