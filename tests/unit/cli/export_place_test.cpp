// Goal:   `ckpt export` writes nothing into a checkpoint, and over nothing that a run consists of.
// Method: a run on the real disk, and places in it, also through links.
#include <unistd.h>

#include <filesystem>

#include "support/in_child.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;

class ExportPlaceScene : public StoredRun {
 public:
  ExportPlaceScene() {
    step = save(1);
    std::filesystem::create_directory_symlink(step, directory.file("link"));
  }
  Result<Outcome> export_to(const std::string& out, const std::string& format) const {
    ExportOptions order;
    order.path = dir;
    order.out = out;
    order.format = format;
    order.rank = 0;
    order.force = true;
    order.json = true;
    order.runtime_dir = runtime_dir();
    return export_tensors(order);
  }
  bool is_whole() const {
    const auto verdict = verify(dir, false);
    return verdict && !verdict->is_trouble;
  }
  std::string step;
};

}  // namespace

TEST_CASE_METHOD(ExportPlaceScene, "cli export: no file of a run is replaced", "[unit][cli]") {
  const std::string files[] = {step + "/rank-00000.safetensors",
                               step + "/manifest.json",
                               step + "/model.safetensors",
                               directory.file("link/model.safetensors"),
                               dir + "/.libckpt/run.json",
                               dir + "/.libckpt/folder/model.safetensors",
                               dir + "/latest",
                               dir + "/step-000000002"};
  for (const std::string& file : files) {
    CAPTURE(file);
    const auto refused = export_to(file, "safetensors");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::invalid_argument);
    CHECK_THAT(refused.error().message(),
               Contains("export to " + file) && Contains("name a place beside it"));
    CHECK(is_whole());
  }
  const std::string folders[] = {step, step + "/", step + "/hf", directory.file("link/hf")};
  for (const std::string& folder : folders) {
    CAPTURE(folder);
    const auto refused = export_to(folder, "hf");
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().message(), Contains(" is a checkpoint; name a place beside it"));
  }
  CHECK(is_whole());
}

TEST_CASE_METHOD(ExportPlaceScene, "cli export: beside the steps there is room", "[unit][cli]") {
  CHECK(export_to(dir + "/model.safetensors", "safetensors"));
  CHECK(export_to(dir + "/hf", "hf"));
  CHECK(export_to(directory.file("latest"), "safetensors"));
  CHECK(is_whole());
}

TEST_CASE_METHOD(ExportPlaceScene, "cli: a run below a parent that cannot be read is named",
                 "[unit][cli]") {
  using std::filesystem::perms;
  (void)copy_to(step, directory.file("other")).value();
  std::filesystem::permissions(directory.path(), perms(0755));
  std::filesystem::permissions(dir, perms(0755));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
    std::filesystem::permissions(entry.path(), perms(0755));
  std::filesystem::permissions(directory.file("other"), perms(0));
  const auto as_somebody_else = [this](const auto& command) {
    return test::in_child([&]() -> std::string {
      if (::geteuid() == 0 && ::setuid(65534) != 0) return "cannot become nobody";
      const Result<Outcome> outcome = command(directory.path());
      if (!outcome) return outcome.error().message();
      return (outcome->is_trouble ? "trouble\n" : "good\n") + outcome->text;
    });
  };
  const auto verify_all = [](const std::string& path) { return verify(path, false); };
  const std::string unreadable = directory.file("other") + ":";
  CHECK_THAT(as_somebody_else(verify_all), Contains("trouble") && Contains(unreadable) &&
                                               Contains("Permission denied") &&
                                               Contains("good    " + step));
  CHECK_THAT(as_somebody_else(list), Contains("trouble") && Contains(unreadable) &&
                                         Contains("Permission denied") &&
                                         Contains("step-000000001"));
  std::filesystem::remove_all(dir);
  CHECK_THAT(as_somebody_else(list), Contains(unreadable) && Contains("Permission denied") &&
                                         !Contains("No checkpoint in"));
  std::filesystem::permissions(directory.file("other"), perms(0755));
}

}  // namespace ckpt::cli
