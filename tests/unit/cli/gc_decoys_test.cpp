// Goal:   `ckpt gc` removes checkpoints that its rule does not keep, and not a byte of what else
// lies
//         in the directory, whatever it is called, or of what links in it lead to.
// Method: a thousand directories on the real disk. Each is a copy of one run, with a dozen decoys
//         drawn from a seed: files, nested directories, links of both kinds and pipes, with names
//         that differ from ours in one place, or with our very names. The command collects garbage
//         in each. Then each decoy is compared with what it was.
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <set>

#include "base/random.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t cases = 1'000;
constexpr std::uint64_t decoys_per_case = 12;
constexpr std::uint64_t steps = 4;

struct Entry {
  fs::file_type type = fs::file_type::none;
  std::string content;  // A link's: where it leads.
  bool operator==(const Entry&) const = default;
};
using Tree = std::map<std::string, Entry>;  // By the path below its root. No link is followed.

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Tree tree_of(const fs::path& root) {
  Tree tree;
  for (const fs::directory_entry& each : fs::recursive_directory_iterator(root)) {
    const fs::file_type type = each.symlink_status().type();
    std::string content;
    if (type == fs::file_type::regular) content = content_of(each.path());
    if (type == fs::file_type::symlink) content = fs::read_symlink(each.path());
    tree[each.path().lexically_relative(root)] = {type, std::move(content)};
  }
  return tree;
}

void put(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

void put_tree(const Tree& tree, const fs::path& root) {
  fs::create_directories(root);
  for (const auto& [name, entry] : tree) {
    if (entry.type == fs::file_type::directory) fs::create_directories(root / name);
    if (entry.type == fs::file_type::regular) put(root / name, entry.content);
    if (entry.type == fs::file_type::symlink) fs::create_symlink(entry.content, root / name);
  }
}

// In memory where the machine has such a file system: the command waits for each sync.
class ScratchPlace {
 public:
  ScratchPlace() {
    const fs::path memory = "/dev/shm";
    std::error_code ignored;
    if (!fs::is_directory(memory, ignored) || ::access(memory.c_str(), W_OK) != 0) return;
    std::string pattern = memory / "ckpt-test-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~ScratchPlace() {
    std::error_code ignored;
    if (path_ != on_disk_.path()) fs::remove_all(path_, ignored);
  }
  ScratchPlace(const ScratchPlace&) = delete;
  ScratchPlace& operator=(const ScratchPlace&) = delete;

  const fs::path& path() const { return path_; }

 private:
  const test::TemporaryDirectory on_disk_;
  fs::path path_ = on_disk_.path();
};

std::string step_name(std::uint64_t step) {
  return storage::step_directory_name(Step{step});
}

class Decoys {
 public:
  Decoys(std::uint64_t seed, const Tree& run, const fs::path& around)
      : root_(around / "run"), elsewhere_(around / "elsewhere"), draw_(seed) {
    put_tree(run, root_);
    for (const auto& [name, entry] : run) ours_.insert(name);
    put(elsewhere_ / "manifest.json", "precious");
    put(elsewhere_ / "deep" / "rank-00000.safetensors", "precious");
    for (std::uint64_t index = 0; index < decoys_per_case; ++index) put_one();
    before_ = tree_of(root_);
    for (const std::string& name : ours_) before_.erase(name);
    elsewhere_before_ = tree_of(elsewhere_);
  }
  void require_untouched() const {
    const Tree now = tree_of(root_);
    for (const auto& [name, entry] : before_) {
      CAPTURE(name);
      REQUIRE(now.contains(name));
      REQUIRE(now.at(name) == entry);
    }
    REQUIRE(tree_of(elsewhere_) == elsewhere_before_);
  }
  bool has(std::uint64_t step) const {
    return fs::exists(root_ / step_name(step) / "manifest.json");
  }
  std::size_t count() const { return before_.size(); }
  const fs::path& root() const { return root_; }

 private:
  template <class T, std::size_t count>
  const T& one_of(const T (&choices)[count]) {
    return choices[draw_.below(count)];
  }
  std::string older_step() { return step_name(1 + draw_.below(steps - 1)); }
  // One of our names, changed so that it is ours no longer.
  std::string name() {
    static const std::string ours[] = {"step-000000001", ".step-000000001.t1.0000000000000001",
                                       "latest",         "rank-00000.safetensors",
                                       "manifest.json",  "run.json.0000000000000001",
                                       "log.jsonl",      "rank-00001.part"};
    const std::string found = one_of(ours);
    const std::string changed[] = {found + "~",
                                   found + ".bak",
                                   found + " (copy)",
                                   "x" + found,
                                   "X" + found,
                                   found + "\n",
                                   found + found,
                                   " " + found,
                                   found + "\xff",
                                   "STEP-" + found,
                                   "-" + found,
                                   found + ".t0",
                                   found.substr(0, found.size() - 1)};
    return one_of(changed);
  }
  void put_one() {
    const std::string step = step_name(1 + draw_.below(steps));
    const std::string places[] = {"",         step,     step + "/folder",
                                  ".libckpt", "step-9", "nested/" + step};
    const fs::path path = root_ / one_of(places) / name();
    if (fs::exists(fs::symlink_status(path))) return;
    fs::create_directories(path.parent_path());
    switch (draw_.below(9)) {
      case 0:
      case 1:
        return put(path, "precious " + path.string());
      case 2:
        return put(path / "a" / "manifest.json", "precious " + path.string());
      case 3:
        return put_link(path);
      case 4:
        return fs::create_hard_link(elsewhere_ / "manifest.json", path);
      case 5:
        return keep_by_link(path);
      case 6:
        return make_pipe(path);
      default:
        return put_ours_where_it_is_foreign();
    }
  }
  void put_link(const fs::path& path) {
    const std::string targets[] = {elsewhere_,
                                   elsewhere_ / "manifest.json",
                                   "/nowhere",
                                   root_ / step_name(1),
                                   "manifest.json",
                                   ".",
                                   ".."};
    fs::create_symlink(one_of(targets), path);
  }
  // Somebody keeps the bytes of a file of ours under another name, there or elsewhere.
  void keep_by_link(const fs::path& path) {
    const fs::path file = root_ / step_name(steps) / "rank-00001.safetensors";
    fs::create_hard_link(file, path);
    const fs::path kept = elsewhere_ / ("kept-" + std::to_string(draw_.next()));
    const fs::path older = root_ / older_step() / "rank-00000.safetensors";
    if (fs::is_regular_file(fs::symlink_status(older))) fs::create_hard_link(older, kept);
  }
  static void make_pipe(const fs::path& path) { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  // Removes something of ours, and returns where it was.
  fs::path taken(const fs::path& name) {
    std::erase_if(ours_, [&](const std::string& each) {
      return each == name || each.starts_with(name.string() + "/");
    });
    fs::remove_all(root_ / name);
    fs::create_directories((root_ / name).parent_path());
    return root_ / name;
  }
  void put_ours_where_it_is_foreign() {
    const std::string step = older_step();
    const std::string number = std::to_string(1 + draw_.below(9));
    const std::string attempt = ".step-00000007" + number + ".t1.000000000000000" + number;
    switch (draw_.below(7)) {
      case 0:  // A step that was moved away, with a link in its place.
        if (!fs::is_directory(fs::symlink_status(root_ / step))) return;
        fs::rename(root_ / step, elsewhere_ / (step + "-" + std::to_string(draw_.next())));
        return fs::create_directory_symlink(elsewhere_ / "deep", taken(step));
      case 1:
        if (!fs::is_directory(fs::symlink_status(root_ / step))) return;
        return fs::create_symlink(elsewhere_ / "manifest.json",
                                  taken(fs::path(step) / "rank-00000.safetensors"));
      case 2:
        if (!fs::is_directory(fs::symlink_status(root_ / step))) return;
        return make_pipe(taken(fs::path(step) / "rank-00001.part"));
      case 3:
        if (!fs::exists(fs::symlink_status(root_ / attempt)))
          fs::create_directory_symlink(elsewhere_, root_ / attempt);
        return;
      case 4:
        if (fs::is_symlink(root_ / attempt)) return;
        return put(root_ / attempt / "folder" / "rank-00000.safetensors", "precious");
      case 5:
        return put(root_ / ("step-00000008" + number), "precious, and no directory");
      default:
        if (!fs::is_directory(fs::symlink_status(root_ / step))) return;
        return put(root_ / step / ("rank-0009" + number + ".safetensors"), "precious");
    }
  }

  const fs::path root_, elsewhere_;
  Random draw_;
  std::set<std::string> ours_;  // Paths below the root, of all that the command may remove.
  Tree before_, elsewhere_before_;
};

}  // namespace

TEST_CASE("gc decoys: nothing that is not ours is removed or changed, whatever it is called",
          "[unit][cli]") {
  StoredRun made;
  for (std::uint64_t step = 1; step <= steps; ++step) made.save(step);
  const Tree run = tree_of(made.dir);
  const ScratchPlace place;
  std::size_t removed = 0, decoys = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    CAPTURE(seed);
    const fs::path around = place.path() / std::to_string(seed);
    Decoys scene(seed, run, around);
    GcOptions given;
    given.dir = scene.root();
    given.runtime_dir = made.runtime_dir();
    given.rule.max_ckpt_num = static_cast<std::uint32_t>(1 + seed % 2);
    const auto done = collect_garbage(given);
    REQUIRE((done ? "" : done.error().message()) == "");
    scene.require_untouched();
    REQUIRE(scene.has(steps));
    for (std::uint64_t step = 1; step < steps; ++step) removed += scene.has(step) ? 0 : 1;
    decoys += scene.count();
    fs::remove_all(around);
  }
  // Otherwise decoys would be spared because nothing is removed at all.
  CHECK(removed > cases);
  CHECK(decoys > cases * decoys_per_case / 2);
}

}  // namespace ckpt::cli
