// Goal:   a file that somebody changes between any two looks at it never gives bytes that were not
//         saved: a reader gets what was saved, or an error.
// Method: reads of a step, plain and compressed, and its verification, on a disk in memory. Before
//         each of their operations in turn, one of the files is cut, grown, rewritten, replaced,
//         removed or made a link; or it is changed, and changed back right afterwards.
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

enum class Change : std::uint8_t {
  cut,
  grown,
  one_bit,
  rewritten,  // In place: who has it open sees the new bytes.
  replaced,   // By another file of the same size: who has it open sees the old ones.
  of_other_step,
  removed,
  link,
};
constexpr Change changes[] = {Change::cut,       Change::grown,    Change::one_bit,
                              Change::rewritten, Change::replaced, Change::of_other_step,
                              Change::removed,   Change::link};

const std::string changing_step = "/scratch/job/step-000000002";
const std::string other_path = "/scratch/job/step-000000001";

class ChangedMeanwhile : public StorageFixture {
 public:
  void save_two(std::optional<storage::Compression> compression) {
    open();
    for (const std::uint64_t step : {1, 2})
      REQUIRE(run(save(site, made_ranks(step_id(step)), ++attempts, compression)));
    checkpoint = catalog().checkpoints.back();
    REQUIRE(checkpoint.at == step_id(2));
    for (const std::string& path : disk.tree()) {
      if (path.starts_with(changing_step + "/") && !path.ends_with("/"))
        names.push_back(path.substr(changing_step.size() + 1));
    }
    REQUIRE(names.size() == 7);
  }
  void make(Change change, const std::string& name) {
    const std::string path = changing_step + "/" + name;
    const std::string content = disk.content(path);
    std::string other = content;
    for (char& byte : other) byte = static_cast<char>(byte ^ 0x55);
    const std::uint64_t size = content.size();
    switch (change) {
      case Change::cut:
        return disk.resize(path, size - 1);
      case Change::grown:
        return disk.resize(path, size + 1);
      case Change::one_bit:
        return disk.flip(path, size / 2, 3);
      case Change::rewritten:
        for (std::uint64_t at = 0; at < size; ++at) disk.flip(path, at, at % 8);
        return;
      case Change::replaced:
        disk.erase(path);
        return disk.put(path, other);
      case Change::of_other_step:
        disk.erase(path);
        return disk.put(path, disk.content(other_path + "/" + name));
      case Change::removed:
        return disk.erase(path);
      case Change::link:
        disk.erase(path);
        return disk.put_link(path, other_path + "/" + name);
    }
  }
  // Runs it with the change before the operation of this number. False: it has fewer.
  template <class Act>
  bool during(std::uint64_t operation, Act act, std::function<void()> change,
              std::function<void()> undo) {
    std::uint64_t seen = 0;
    disk.set_hook([&](std::string_view, const std::string&) {
      if (seen == operation) change();
      if (seen == operation + 1 && undo) undo();
      ++seen;
      return 0;
    });
    act();
    disk.set_hook(nullptr);
    return seen > operation;
  }

  storage::Checkpoint checkpoint;
  std::vector<std::string> names;
};

std::optional<storage::Compression> any_compression() {
  return GENERATE(std::optional<storage::Compression>(),
                  std::optional<storage::Compression>(storage::Compression{}));
}

// A step's files as they are on the disk; puts them back.
class KeptFiles {
 public:
  explicit KeptFiles(ChangedMeanwhile& scene) : scene_(scene) {
    for (const std::string& name : scene.names)
      contents_[name] = scene.disk.content(changing_step + "/" + name);
  }
  void restore(const std::string& name) const {
    scene_.disk.erase(changing_step + "/" + name);
    scene_.disk.put(changing_step + "/" + name, contents_.at(name));
  }

 private:
  ChangedMeanwhile& scene_;
  std::map<std::string, std::string> contents_;
};

}  // namespace

TEST_CASE_METHOD(ChangedMeanwhile, "changed meanwhile: a restore gets what was saved or an error",
                 "[unit][storage]") {
  save_two(any_compression());
  const bool is_undone = GENERATE(false, true);
  const KeptFiles kept(*this);
  std::size_t good = 0, refused = 0;
  for (const std::string& name : names) {
    for (const Change change : changes) {
      bool is_reached = true;
      for (std::uint64_t operation = 0; is_reached; ++operation) {
        REQUIRE(operation < 500);
        CAPTURE(name, static_cast<int>(change), operation);
        std::function<void()> undo;
        if (is_undone) undo = [&] { kept.restore(name); };
        const auto read = [&] {
          const Status content = run(check_content(site, checkpoint));
          ++(content ? good : refused);
          if (content) return;
          // check_content says so of bytes that a restore would have returned as good.
          REQUIRE(content.error().text().find("never saved") == std::string::npos);
          REQUIRE(content.error().text().find("another record") == std::string::npos);
        };
        is_reached = during(operation, read, [&] { make(change, name); }, undo);
        kept.restore(name);
      }
    }
  }
  CHECK(good > 100);
  CHECK(refused > 100);
}

TEST_CASE_METHOD(ChangedMeanwhile, "changed meanwhile: a step that is verified had its bytes",
                 "[unit][storage]") {
  save_two(any_compression());
  const KeptFiles kept(*this);
  std::size_t noticed = 0;
  for (const std::string& name : names) {
    for (const Change change : changes) {
      bool is_reached = true;
      for (std::uint64_t operation = 0; is_reached; ++operation) {
        REQUIRE(operation < 500);
        CAPTURE(name, static_cast<int>(change), operation);
        bool is_good = false;
        const auto verify = [&] {
          const auto report = run(storage::verify_checkpoint(files, changing_step));
          is_good = report && report->is_good();
        };
        is_reached = during(operation, verify, [&] { make(change, name); }, nullptr);
        // At the first operation nothing has been read: what is good then is the changed step.
        if (operation == 0) REQUIRE_FALSE(is_good);
        noticed += is_good ? 0 : 1;
        kept.restore(name);
        REQUIRE(run(storage::verify_checkpoint(files, changing_step))->is_good());
      }
    }
  }
  CHECK(noticed > 100);
}

}  // namespace ckpt::test
