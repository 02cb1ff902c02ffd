// Goal:   whatever else people put beside checkpoints, and into them, stays as it is while old
// steps,
//         abandoned attempts and obsolete records are removed.
// Method: thousands of directories on a disk in memory, each with a few steps, an abandoned attempt
//         and a dozen decoys drawn from a seed: files, links, nested directories and mounts, with
//         names that differ from ours in one place, or with our names where we have no such thing.
//         Everything that removes is called; then each decoy is compared with what it was.
#include <set>

#include "storage/latest.hpp"
#include "storage/timeline_claim.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t cases = 2'000;
constexpr std::uint64_t decoys_per_case = 12;
const std::string root = "/scratch/job";

class Decoys : public StorageFixture {
 public:
  explicit Decoys(std::uint64_t seed) : StorageFixture(seed), draw_(seed) {
    disk.put("/elsewhere/manifest.json", "precious");
    disk.put("/elsewhere/deep/rank-00000.safetensors", "precious");
    open();
    steps = 2 + draw_.below(3);
    for (std::uint64_t step = 1; step <= steps; ++step) must_save(step_id(step));
    storage::Claim claim;
    claim.timeline = 1;
    REQUIRE(run(storage::claim_timeline(site, claim)));
    format::Timelines timelines;
    timelines.run = test_run;
    timelines.history.resize(1);
    timelines.history.front().timeline = 1;
    REQUIRE(run(storage::store_timelines(site, timelines, 1)));
    const auto abandoned = run(write_step(site, made_ranks(step_id(9)), ++attempts));
    REQUIRE(abandoned);
    work_name = abandoned->work_name;
  }

  void put_decoys() {
    const auto before = tree_now();
    for (std::uint64_t index = 0; index < decoys_per_case; ++index) put_one();
    for (const std::string& path : tree_now()) {
      if (!before.contains(path)) decoys_.emplace(path, disk.content(path));
    }
    REQUIRE(decoys_.size() >= decoys_per_case / 2);
  }
  void remove_what_is_ours() {
    for (std::uint64_t round = 0; round < 3; ++round) {
      // It may refuse what it cannot understand; what matters is what it removes.
      (void)retain(static_cast<std::uint32_t>(1 + draw_.below(2)));
      (void)run(storage::discard_stale(site, {}));
      (void)run(storage::discard_claims(site, 5));
      (void)run(storage::mend_latest(site, test_run, catalog(), ++attempts));
    }
  }
  void require_untouched() {
    const auto now = tree_now();
    for (const auto& [path, content] : decoys_) {
      CAPTURE(path);
      REQUIRE(now.contains(path));
      REQUIRE(disk.content(path) == content);
    }
    REQUIRE(disk.content("/elsewhere/manifest.json") == "precious");
    REQUIRE(disk.content("/elsewhere/deep/rank-00000.safetensors") == "precious");
  }

  std::uint64_t steps = 0;
  std::string work_name;

 private:
  std::set<std::string> tree_now() const {
    const auto all = disk.tree();
    return {all.begin(), all.end()};
  }
  template <class T, std::size_t count>
  const T& one_of(const T (&choices)[count]) {
    return choices[draw_.below(count)];
  }
  // A directory of ours, or of a decoy.
  std::string place() {
    const std::string step =
        root + "/" + storage::step_directory_name(Step{1 + draw_.below(steps)});
    const std::string choices[] = {
        root, step, root + "/" + work_name, root + "/.libckpt", step + "/folder", root + "/step-9"};
    return one_of(choices);
  }
  // One of our names, changed so that it is ours no longer.
  std::string name() {
    const std::string ours[] = {"step-000000001",
                                ".step-000000001.t1.0000000000000001",
                                "latest",
                                ".latest.0000000000000001",
                                "run.json.0000000000000001",
                                "rank-00000.safetensors",
                                "rank-00001.part",
                                "rank-00000.blobs",
                                "manifest.json",
                                "timelines.json.0000000000000001",
                                "log.jsonl"};
    const std::string found = one_of(ours);
    const std::string changed[] = {found + "~", found + ".bak",  found + " (copy)",
                                   "x" + found, "~" + found,     found.substr(0, found.size() - 1),
                                   "X" + found, found + "\n",    found + found,
                                   " " + found, "STEP-" + found, "-" + found};
    return one_of(changed);
  }
  void put_one() {
    const std::string directory = place();
    const std::string file = name();
    const std::string path = directory + "/" + file;
    if (disk.exists(path)) return;
    // Any file "rank-00000.abc" of an attempt is ours: ranks name their own members.
    if (directory.ends_with(work_name) && file.starts_with("rank-")) return;
    const std::string content = "precious " + path;
    const std::string targets[] = {"/elsewhere",    "/elsewhere/manifest.json",
                                   "/nowhere",      root + "/step-000000001",
                                   "manifest.json", "."};
    switch (draw_.below(8)) {
      case 0:
      case 1:
      case 2:
        return disk.put(path, content);
      case 3:
        return disk.put_link(path, one_of(targets));
      case 4:
        return disk.put(path + "/rank-00000.safetensors", content);
      case 5:
        return disk.put(path + "/a/b/c/manifest.json", content);
      case 6:
        return put_mount(path, content);
      default:
        return put_ours_where_it_is_foreign(content);
    }
  }
  void put_mount(const std::string& path, const std::string& content) {
    disk.put_directory(path);
    const auto kind = draw_.one_in(2) ? MemoryDisk::Mounted::bind : MemoryDisk::Mounted::device;
    disk.unmount(path, kind);  // From here on something else is there.
    disk.put(path + "/rank-00000.safetensors", content);
    disk.put(path + "/manifest.json", content);
  }
  // Our very names, of things that are not what we make.
  void put_ours_where_it_is_foreign(const std::string& content) {
    const std::string step =
        root + "/" + storage::step_directory_name(Step{1 + draw_.below(steps)});
    const std::uint64_t number = 1 + draw_.below(9);
    const std::string hidden = root + "/.step-00000007" + std::to_string(number) +
                               ".t1.000000000000000" + std::to_string(number);
    switch (draw_.below(5)) {
      case 0:
        return disk.put_link(hidden, "/elsewhere");
      case 1:
        return disk.put(step + "/rank-0009" + std::to_string(number) + ".safetensors", content);
      case 2:
        return disk.put(hidden + "/folder/rank-00000.safetensors", content);
      case 3:
        return disk.put(root + "/folder/step-000000001/manifest.json", content);
      default:
        return copy_of_strangers(root + "/step-00000008" + std::to_string(number));
    }
  }
  // A whole checkpoint of another run, under a name of ours.
  void copy_of_strangers(const std::string& directory) {
    static const std::map<std::string, std::string> strangers = [] {
      StorageFixture theirs;
      std::vector<MadeShard> shards;
      for (std::uint32_t rank = 0; rank < world_size; ++rank)
        shards.push_back(make_rank(step_id(80), rank, format::RunId{7, 7}));
      REQUIRE(theirs.run(storage::open_run_directory(theirs.site, order_of_strangers())));
      REQUIRE(theirs.run(save(theirs.site, shards, 1)));
      std::map<std::string, std::string> found;
      const std::string from = root + "/step-000000080/";
      for (const std::string& path : theirs.disk.tree()) {
        if (path.starts_with(from) && !path.ends_with("/"))
          found[path.substr(from.size())] = theirs.disk.content(path);
      }
      return found;
    }();
    REQUIRE(strangers.size() == 7);
    if (disk.exists(directory)) return;
    for (const auto& [file, content] : strangers) disk.put(directory + "/" + file, content);
  }
  static storage::RunOrder order_of_strangers() {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = format::RunId{7, 7};
    order.attempt = 1;
    return order;
  }

  Random draw_;
  std::map<std::string, std::string> decoys_;  // Paths as in MemoryDisk::tree, with contents.
};

}  // namespace

TEST_CASE("decoys: nothing that is not ours is removed or changed, whatever it is called",
          "[unit][storage]") {
  std::uint64_t removed_steps = 0, removed_attempts = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    CAPTURE(seed);
    Decoys scene(seed);
    scene.put_decoys();
    scene.remove_what_is_ours();
    scene.require_untouched();
    const auto whole = scene.whole_steps();
    REQUIRE_FALSE(whole.empty());
    REQUIRE(whole.back() == step_id(scene.steps));
    removed_steps += scene.steps - whole.size();
    const std::string work = root + "/" + scene.work_name + "/rank-00000.part";
    removed_attempts += scene.disk.exists(work) ? 0 : 1;
  }
  // Otherwise decoys would be spared because nothing is removed at all.
  CHECK(removed_steps > cases);
  CHECK(removed_attempts > cases / 10);  // Those without a decoy in them.
}

}  // namespace ckpt::test
