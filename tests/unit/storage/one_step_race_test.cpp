// Goal:   of two daemons that publish the same step at once, neither removes what the other one has
//         just published, and the newest stays.
// Method: one of them acts between two calls of the other, at the points that matter, with and
//         without an exchange of directories.
#include <utility>

#include "support/remove_named.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

// As another daemon does in one moment; with an exchange, the older one is gone as well.
void put_other(StorageFixture& scene, format::StepId at, std::uint32_t generation = 1) {
  StorageFixture other;
  other.open();
  other.must_save(at);
  const std::string from = "/scratch/job/" + storage::step_directory_name(at.step) + "/";
  const std::string to = "/scratch/job/" + storage::step_directory_name(at.step, generation);
  scene.disk.erase(to);
  for (const std::string& path : other.disk.tree())
    if (path.starts_with(from) && path != from)
      scene.disk.put(to + path.substr(from.size() - 1), other.disk.content(path));
}

}  // namespace

TEST_CASE("one step of two daemons: a step that is published in the moment of a removal stays",
          "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(5, 1));
  bool is_first = true;
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_ours = verb == "rename" && path.find("/step-000000005") != std::string::npos;
    if (is_ours && std::exchange(is_first, false)) put_other(scene, step_id(5, 3));
    return 0;
  });
  const Status removed = scene.run(remove_named(scene.site, "step-000000005", test_run));
  scene.disk.set_hook(nullptr);
  CHECK_FALSE(is_first);
  REQUIRE_FALSE(removed);
  CHECK(removed.error().message().find("another checkpoint has its name") != std::string::npos);
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 3)});
}

TEST_CASE(
    "one step of two daemons: a newer step that comes between the last look and the exchange stays",
    "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(5, 1));
  const auto publish_newer = [&] { put_other(scene, step_id(5, 3)); };
  int renames = 0;  // The first one finds the name taken.
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb == "rename" && path.find("/step-000000005") != std::string::npos && ++renames == 2)
      publish_newer();
    return 0;
  });
  const auto refused = scene.try_save(step_id(5, 2));
  scene.disk.set_hook(nullptr);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("timeline 3 has published it already") != std::string::npos);
  CHECK(renames == 3);  // It goes back.
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 3)});
}

TEST_CASE(
    "one step of two daemons: where no exchange exists, an older step is not published beside",
    "[unit][storage]") {
  StorageFixture scene;
  scene.disk.set_exchange_supported(false);
  scene.open();
  scene.must_save(step_id(5, 3));
  const auto refused = scene.try_save(step_id(5, 2));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("timeline 3 has published it already") != std::string::npos);
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 3)});
}

TEST_CASE("one step of two daemons: none is published beside a newer one that has just come",
          "[unit][storage]") {
  StorageFixture scene;
  scene.disk.set_exchange_supported(GENERATE(true, false));
  scene.open();
  bool is_first = true;
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_ours = verb == "rename" && path.find("/step-000000005") != std::string::npos;
    if (is_ours && std::exchange(is_first, false)) put_other(scene, step_id(5, 3));
    return 0;
  });
  const auto refused = scene.try_save(step_id(5, 2));
  scene.disk.set_hook(nullptr);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("timeline 3 has published it already") != std::string::npos);
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 3)});
}

TEST_CASE(
    "one step of two daemons: where no exchange exists, a name that becomes free is one's own",
    "[unit][storage]") {
  StorageFixture scene;
  scene.disk.set_exchange_supported(false);
  scene.open();
  scene.must_save(step_id(5, 1));
  put_other(scene, step_id(5, 1), 2);  // And is about to remove the other.
  bool is_first = true;
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_ours = verb == "rename" && path.find("/step-000000005") != std::string::npos;
    if (is_ours && std::exchange(is_first, false)) scene.disk.erase("/scratch/job/step-000000005");
    return 0;
  });
  scene.must_save(step_id(5, 1));
  scene.disk.set_hook(nullptr);
  CHECK_FALSE(is_first);
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 1)});
}

TEST_CASE("one step of two daemons: what is published under an older one's name stays",
          "[unit][storage]") {
  StorageFixture scene;
  scene.disk.set_exchange_supported(false);
  scene.open();
  scene.must_save(step_id(5, 1));
  int renames = 0;
  scene.disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_ours = verb == "rename" && path.find("/step-000000005") != std::string::npos;
    if (is_ours && ++renames == 2) put_other(scene, step_id(5, 3));  // The name is .g2 now.
    return 0;
  });
  scene.must_save(step_id(5, 2));
  scene.disk.set_hook(nullptr);
  CHECK(scene.whole_steps() == std::vector<format::StepId>{step_id(5, 2), step_id(5, 3)});
}

}  // namespace ckpt::test
