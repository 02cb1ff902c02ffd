// Goal:   the second place of a job gets copies at its pace, a restore takes the newest good step
//         of both places, and a second place that fails harms nothing but itself.
// Method: engines, one after another, on one disk in memory with two directories; the disk fails
//         for one of them.
#include <nlohmann/json.hpp>

#include "os/objects.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

constexpr const char* first = "/scratch/job";
constexpr const char* second = "/far/job";

struct Places {
  Places() : disk(1) {
    disk.put_directory("/scratch");
    disk.put_directory("/far");
  }

  void fail(std::string_view below, int error = EIO) {
    disk.set_hook([this, below = std::string(below), error](std::string_view, const auto& path) {
      if (!path.starts_with(below)) return 0;
      ++failures;
      return error;
    });
  }
  void mend() { disk.set_hook({}); }
  std::vector<std::string> steps_in(const std::string& place) const {
    std::vector<std::string> found;
    for (const std::string& path : disk.tree()) {
      const std::string prefix = place + "/step-";
      const bool is_step = path.starts_with(prefix) && path.ends_with("/manifest.json");
      if (is_step) found.push_back(std::to_string(std::stoi(path.substr(prefix.size(), 9))));
    }
    return found;
  }

  test::MemoryDisk disk;
  int failures = 0;
};

struct TwoPlacesTrainer : test::OneRank {
  explicit TwoPlacesTrainer(Places& places, std::string every = "", std::uint64_t bytes = 3 * KiB,
                            const EngineOptions& options = EngineOptions())
      : OneRank(places.disk, bytes, options) {
    request.dir = std::string(first) + ", " + second + every;
    request.save_storage_interval.steps = 1;
  }
  void offered(control::Offer offer) override {
    source_name = offer.source_name;
    OneRank::offered(std::move(offer));
  }
  std::string source_name;
  void store(std::uint64_t step) {
    capture(Step{step});
    REQUIRE(pass_until([&] { return durable == Step{step}; }));
  }
  nlohmann::json job_status() const {
    return nlohmann::json::parse(engine->status_json())["jobs"][0];
  }
  bool has_copied(std::uint64_t step) {
    return pass_until([&] {
      const auto place = job_status()["second_place"];
      return place["copying"].is_null() && !place["newest"].is_null() &&
             place["newest"]["step"] == step;
    });
  }
  std::string trouble() const {
    const auto degraded = job_status()["degraded"];
    return degraded.is_null() ? "" : degraded.get<std::string>();
  }
  Result<Step> restored_step() {
    answer.reset();
    CKPT_CHECK(attach());
    CKPT_CHECK(engine->call(session, control::AskRestore{1, std::nullopt}));
    REQUIRE(pass_until([this] { return answer.has_value(); }));
    if (!answer->result) return ckpt::fail(Error(answer->result.error()));
    if (!answer->restored) return ckpt::fail(Errc::not_found, "nothing was restored");
    return answer->restored->step;
  }
};

// A server that does not answer. Its texts are of the place that is asked for, or of none.
struct SilentServer final : os::Objects {
  Task<os::TaggedBytes> read_tagged(std::string, std::uint64_t) override { co_return nothing(); }
  Task<void> put_small(std::string, std::vector<std::byte>, os::PutCondition) override {
    co_return nothing();
  }
  Task<std::vector<os::ObjectEntry>> list_below(std::string) override { co_return nothing(); }
  Task<std::vector<os::Upload>> list_uploads_below(std::string) override { co_return nothing(); }
  Task<void> abort_upload(std::string, std::string) override { co_return nothing(); }
  std::string silence(std::string_view path) const override {
    return "no answer from the server" + (is_of_place ? " of " + std::string(path) : "");
  }
  static Unexpected nothing() { return ckpt::fail(Errc::unavailable, "nobody answers"); }

  bool is_of_place = false;
};

using Names = std::vector<std::string>;

// Three steps: each in the first place, and the third one in the second, too.
void save_three(Places& places, std::string every = " every 2") {
  TwoPlacesTrainer trainer(places, every);
  REQUIRE(trainer.begin_fresh());
  trainer.store(1);
  REQUIRE(trainer.has_copied(1));
  trainer.store(2);
  trainer.store(3);
  REQUIRE(trainer.has_copied(3));
}

}  // namespace

TEST_CASE("second place: it gets each n-th step that the first one has", "[unit][node]") {
  Places places;
  save_three(places);
  CHECK(places.steps_in(first) == Names{"1", "2", "3"});
  CHECK(places.steps_in(second) == Names{"1", "3"});
}

TEST_CASE("second place: what it has is shown from the start of a daemon", "[unit][node]") {
  Places places;
  save_three(places);
  TwoPlacesTrainer trainer(places, " every 2");
  REQUIRE(trainer.restored_step().value() == Step{3});
  const auto place = trainer.job_status()["second_place"];
  REQUIRE(place["newest"].is_object());
  CHECK(place["newest"]["step"] == 3);
}

TEST_CASE("second place: the end of a daemon names what it has", "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places, " every 2");
  REQUIRE(trainer.begin_fresh());
  const auto held = [&] {
    return nlohmann::json::parse(trainer.engine->held_json())["jobs"][0]["second_place"];
  };
  CHECK(held() == nlohmann::json({{"directory", second}, {"newest", nullptr}}));
  trainer.store(1);
  REQUIRE(trainer.has_copied(1));
  trainer.store(2);
  CHECK(held() == nlohmann::json({{"directory", second}, {"newest", 1}}));
}

TEST_CASE("second place: retention holds in each place by itself", "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places);
  trainer.request.max_ckpt_num = 2;
  REQUIRE(trainer.begin_fresh());
  for (const std::uint64_t step : {1, 2, 3, 4}) {
    trainer.store(step);
    REQUIRE(trainer.has_copied(step));
  }
  CHECK(places.steps_in(first) == Names{"3", "4"});
  CHECK(places.steps_in(second) == Names{"3", "4"});
}

TEST_CASE("second place: it gets its turn while the first one is always written to",
          "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places);
  trainer.request.max_ckpt_num = 1;
  REQUIRE(trainer.begin_fresh());
  places.disk.set_latency(std::chrono::milliseconds(400), std::chrono::milliseconds(800));
  for (std::uint64_t step = 1; step <= 60; ++step) trainer.store(step);
  CHECK_FALSE(places.steps_in(second).empty());
  CHECK(places.steps_in(first).size() <= 2);  // The one that is copied stays as long.
}

TEST_CASE("second place: `latest` is mended in both places when a job begins", "[unit][node]") {
  Places places;
  save_three(places, "");
  for (const std::string place : {first, second}) places.disk.erase(place + "/step-000000003");
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.restored_step().value() == Step{2});
  REQUIRE(trainer.pass_until(
      [&] { return places.disk.content(std::string(second) + "/latest") == "step-000000002\n"; }));
  CHECK(places.disk.content(std::string(first) + "/latest") == "step-000000002\n");
}

TEST_CASE("second place: what is damaged in the first place is made good again", "[unit][node]") {
  Places places;
  save_three(places, "");
  const std::string path = std::string(first) + "/step-000000003/rank-00000.safetensors";
  const std::string whole = places.disk.content(path);
  places.disk.flip(path, whole.size() - 1, 2);
  TwoPlacesTrainer trainer(places, "");
  REQUIRE(trainer.restored_step().value() == Step{3});
  REQUIRE(trainer.pass_until([&] { return places.disk.content(path) == whole; }));
}

TEST_CASE("second place: files that either place lacks come from the other", "[unit][node]") {
  Places places;
  save_three(places, "");
  const std::string broken = GENERATE(std::string(first), second);
  const std::string file = GENERATE("rank-00000.safetensors", "rank-00000.part");
  const std::string path = broken + "/step-000000003/" + file;
  const std::string whole = places.disk.content(path);
  SECTION("rotten") {
    places.disk.flip(path, whole.size() - 1, 2);
  }
  SECTION("cut off") {
    places.disk.resize(path, whole.size() - 1);
  }
  SECTION("missing") {
    places.disk.erase(path);
  }
  const bool is_seen = broken == first || places.disk.content(path).size() != whole.size();
  TwoPlacesTrainer trainer(places, "");
  REQUIRE(trainer.restored_step().value() == Step{3});
  if (!is_seen) return;  // Nothing reads what rots in the second place.
  CHECK(trainer.pass_until([&] { return places.disk.content(path) == whole; }));
  // And the next one finds nothing damaged.
  TwoPlacesTrainer next(places, "");
  REQUIRE(next.restored_step().value() == Step{3});
  CHECK(next.answer->reason.find("damaged") == std::string::npos);
}

TEST_CASE("second place: what cannot be read is no damage, and is not replaced", "[unit][node]") {
  Places places;
  save_three(places, "");
  const std::string path = std::string(first) + "/step-000000003/rank-00000.safetensors";
  places.disk.flip(path, places.disk.content(path).size() - 1, 2);
  const std::string there = places.disk.content(path);
  places.disk.set_hook([&](std::string_view verb, const std::string& touched) {
    return touched == path && verb != "status" ? EACCES : 0;
  });
  TwoPlacesTrainer trainer(places, "");
  REQUIRE(trainer.restored_step().value() == Step{3});
  const Time later = trainer.clock.now() + std::chrono::minutes(2);
  (void)trainer.pass_until([&] { return trainer.clock.now() > later; });
  CHECK(places.disk.content(path) == there);
}

TEST_CASE("second place: what is made good keeps to the limit of flushes", "[unit][node]") {
  constexpr std::uint64_t bytes = 64 * KiB;
  EngineOptions options;
  options.chunk_bytes = 4 * KiB;
  Places places;
  {
    TwoPlacesTrainer trainer(places, "", bytes, options);
    REQUIRE(trainer.begin_fresh());
    trainer.store(1);
    REQUIRE(trainer.has_copied(1));
  }
  const std::string path = std::string(first) + "/step-000000001/rank-00000.safetensors";
  const std::string whole = places.disk.content(path);
  places.disk.flip(path, whole.size() - 1, 2);
  TwoPlacesTrainer trainer(places, "", bytes, options);
  trainer.request.flush_rate = bytes / 20;
  REQUIRE(trainer.restored_step().value() == Step{1});
  const Time began = trainer.clock.now();
  REQUIRE(trainer.pass_until([&] { return places.disk.content(path) == whole; }));
  CHECK(trainer.clock.now() - began > std::chrono::seconds(15));
}

TEST_CASE("second place: it knows how often a step was restored without progress", "[unit][node]") {
  Places places;
  save_three(places, "");
  {
    TwoPlacesTrainer trainer(places, "");
    REQUIRE(trainer.restored_step().value() == Step{3});
    const auto counts = [&](const std::string& place) {
      const std::string text = places.disk.content(place + "/.libckpt/timelines.json");
      return nlohmann::json::parse(text)["restore_counts"];
    };
    REQUIRE(trainer.pass_until([&] { return !counts(second).empty(); }));
    CHECK(counts(second) == counts(first));
  }
}

TEST_CASE("second place: a close copies the newest step, whatever the pace", "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places, " every 100");
  REQUIRE(trainer.begin_fresh());
  trainer.store(1);
  REQUIRE(trainer.has_copied(1));
  trainer.store(2);
  close(trainer);
  REQUIRE(trainer.pass_until([&] { return places.steps_in(second) == Names{"1", "2"}; }));
}

TEST_CASE("second place: a lost first place is restored from it, and filled again",
          "[unit][node]") {
  Places places;
  save_three(places);
  places.disk.erase(first);
  if (GENERATE(true, false)) places.disk.put_directory(first);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();  // Compares the bytes, too.
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  CHECK(trainer.answer->timeline == 2);  // Not the number that the lost directory knew.
  REQUIRE(trainer.pass_until([&] { return trainer.granted.size() >= 2; }));
  trainer.store(4);
  REQUIRE(trainer.has_copied(4));
  CHECK(places.steps_in(first).back() == "4");
  CHECK(places.steps_in(second) == Names{"1", "3", "4"});
}

TEST_CASE("second place: the newest step counts, wherever it lies", "[unit][node]") {
  Places places;
  save_three(places);
  places.disk.erase("/scratch/job/step-000000003");
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
}

TEST_CASE("second place: a step that both have is read from the first", "[unit][node]") {
  Places places;
  save_three(places);
  places.disk.clear_log();
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.restore());
  const auto reads_of = [&](const std::string& place) {
    return std::ranges::count_if(places.disk.log(), [&](const std::string& line) {
      return line.find(place) != std::string::npos &&
             line.find(".safetensors") != std::string::npos && line.starts_with("read");
    });
  };
  CHECK(reads_of(first) > 0);
  CHECK(reads_of(second) == 0);
}

TEST_CASE("second place: a step damaged in the first is read from the second", "[unit][node]") {
  Places places;
  save_three(places);
  const std::string file = GENERATE("rank-00000.safetensors", "rank-00000.part", "manifest.json");
  CAPTURE(file);
  places.disk.flip("/scratch/job/step-000000003/" + file, 100, 3);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  CHECK(trainer.source_name == "storage, from the second place /far/job");
}

TEST_CASE("second place: one that both have damaged is passed over", "[unit][node]") {
  Places places;
  save_three(places);
  for (const char* place : {first, second})
    places.disk.flip(std::string(place) + "/step-000000003/rank-00000.safetensors", 900, 3);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{2});
}

TEST_CASE("second place: one that both had damaged is restored once either is repaired",
          "[unit][node]") {
  Places places;
  save_three(places);
  const auto flip = [&](const std::string& place) {
    for (const std::string& step : places.steps_in(place))
      places.disk.flip(place + "/step-00000000" + step + "/rank-00000.safetensors", 900, 3);
  };
  flip(first);
  flip(second);
  TwoPlacesTrainer trainer(places);
  const auto refused = trainer.restore();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::corruption);
  const std::string repaired = GENERATE(first, second);
  flip(repaired);
  trainer.engine->detach(trainer.session);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  CHECK_FALSE(trainer.is_wrong);
}

TEST_CASE("second place: while it fails, training goes on, and it catches up with the newest",
          "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.begin_fresh());
  trainer.store(1);
  REQUIRE(trainer.has_copied(1));
  places.fail("/far");
  trainer.store(2);
  trainer.store(3);
  REQUIRE(trainer.pass_until([&] { return !trainer.trouble().empty(); }));
  CHECK(trainer.trouble().find("the second place /far/job does not get steps") !=
        std::string::npos);
  const std::string said = trainer.trouble();
  trainer.store(4);
  CHECK(trainer.trouble() == said);
  CHECK(places.steps_in(first) == Names{"1", "2", "3", "4"});
  // Nothing more is saved: it is tried again by itself.
  const int failures = places.failures;
  REQUIRE(trainer.pass_until([&] {
    return places.failures > failures && trainer.job_status()["second_place"]["copying"].is_null();
  }));
  places.mend();
  REQUIRE(trainer.has_copied(4));
  CHECK(trainer.trouble().empty());
  CHECK(places.steps_in(second) == Names{"1", "4"});
}

TEST_CASE("second place: one that hangs holds up neither a start nor a save", "[unit][node]") {
  Places places;
  save_three(places);
  places.fail("/far", ETIMEDOUT);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  REQUIRE(trainer.pass_until([&] { return trainer.granted.size() >= 2; }));
  trainer.store(4);
  CHECK_FALSE(trainer.trouble().empty());
}

TEST_CASE("second place: a job does not begin anew while it cannot be read", "[unit][node]") {
  Places places;
  save_three(places);
  places.disk.erase(first);
  places.fail("/far");
  TwoPlacesTrainer trainer(places);
  const Status attached = trainer.attach();
  REQUIRE_FALSE(attached);
  CHECK(attached.error().code() == Errc::unavailable);
  CHECK(attached.error().text().find("may hold the job's checkpoints") != std::string::npos);
  CHECK_FALSE(places.disk.exists(std::string(first) + "/.libckpt/run.json"));
  places.mend();
  const auto restored = trainer.restored_step();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
}

TEST_CASE("second place: one that refuses us is named at once, before a job begins anew",
          "[unit][node]") {
  Places places;
  save_three(places);
  places.fail("/far", EACCES);
  SECTION("the first one is new") {
    places.disk.erase(first);
    TwoPlacesTrainer trainer(places);
    const Time begin = trainer.clock.now();
    const Status attached = trainer.attach();
    REQUIRE_FALSE(attached);
    CHECK(attached.error().code() == Errc::io);  // No wait mends it.
    CHECK(attached.error().text().find("the second place") != std::string::npos);
    CHECK(trainer.clock.now() - begin < std::chrono::seconds(1));
    CHECK_FALSE(places.disk.exists(std::string(first) + "/.libckpt/run.json"));
  }
  SECTION("the first one has the run") {
    TwoPlacesTrainer trainer(places);
    REQUIRE(trainer.restored_step());
    CHECK(trainer.trouble().find(second) != std::string::npos);
    CHECK(trainer.trouble().rfind("the second place") ==
          trainer.trouble().find("the second place"));
  }
}

TEST_CASE("second place: the directory of another run is refused", "[unit][node]") {
  Places places;
  test::save_two_steps(places.disk);
  {
    test::OneRank other(places.disk);
    other.request.dir = second;
    REQUIRE(other.begin_fresh());
  }
  TwoPlacesTrainer trainer(places);
  const Status attached = trainer.attach();
  REQUIRE_FALSE(attached);
  CHECK(attached.error().code() == Errc::invalid_argument);
  CHECK(attached.error().text().find("name two places of one run") != std::string::npos);
}

TEST_CASE("second place: steps that a restore abandoned stay abandoned there", "[unit][node]") {
  Places places;
  save_three(places);
  {
    TwoPlacesTrainer back(places, " every 100");  // Step 2 does not go there meanwhile.
    REQUIRE(back.attach());
    REQUIRE(back.engine->call(back.session, control::AskRestore{1, Step{2}}));
    REQUIRE(back.pass_until([&] { return back.answer.has_value(); }));
    REQUIRE(back.answer->restored);
    REQUIRE(back.answer->restored->step == Step{2});
    const std::string timelines = std::string(second) + "/.libckpt/timelines.json";
    REQUIRE(back.pass_until([&] {
      return places.disk.content(timelines).find("{\"id\":2,\"has_base\":1") != std::string::npos;
    }));
  }
  places.disk.erase(first);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{1});  // Not step 3, which is newer, and abandoned.
}

TEST_CASE("second place: places that went on by themselves are not mixed", "[unit][node]") {
  Places places;
  save_three(places);
  const auto go_back_alone = [&](const char* place, std::uint64_t step) {
    test::OneRank alone(places.disk);
    alone.request.dir = place;
    REQUIRE(alone.attach());
    REQUIRE(alone.engine->call(alone.session, control::AskRestore{1, Step{step}}));
    REQUIRE(alone.pass_until([&] { return alone.answer.has_value(); }));
    REQUIRE(alone.answer->restored);
    close(alone);
  };
  go_back_alone(first, 2);
  go_back_alone(second, 1);  // Both are timeline 2 now.
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{2});
  CHECK(trainer.trouble().find("a job went on from both") != std::string::npos);
  REQUIRE(trainer.pass_until([&] { return trainer.granted.size() >= 2; }));
  trainer.store(4);
  CHECK(places.steps_in(second) == Names{"1", "3"});
}

TEST_CASE("second place: a step that is saved again replaces the abandoned one", "[unit][node]") {
  Places places;
  save_three(places);
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.attach());
  REQUIRE(trainer.engine->call(trainer.session, control::AskRestore{1, Step{2}}));
  REQUIRE(trainer.pass_until([&] { return trainer.granted.size() >= 2; }));
  trainer.store(3);
  REQUIRE(trainer.pass_until([&] {
    const auto place = trainer.job_status()["second_place"];
    return !place["newest"].is_null() && place["newest"]["timeline"] == 2;
  }));
  CHECK(places.steps_in(second) == Names{"1", "2", "3"});
  CHECK(trainer.trouble().empty());
}

TEST_CASE("second place: the steps of a fresh start take the places of those before",
          "[unit][node]") {
  Places places;
  save_three(places);
  {
    TwoPlacesTrainer trainer(places);
    REQUIRE(trainer.begin_fresh());
    trainer.store(1);
    REQUIRE(trainer.pass_until([&] {
      const auto place = trainer.job_status()["second_place"];
      return !place["newest"].is_null() && place["newest"]["timeline"] == 2;
    }));
    CHECK(trainer.trouble().empty());
  }
  places.disk.erase(first);
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restored_step();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{1});  // And not the third one of the training before.
}

TEST_CASE("second place: a file system that is not mounted stops no training", "[unit][node]") {
  Places places;
  save_three(places);
  TwoPlacesTrainer trainer(places);
  trainer.request.dir = std::string(first) + ", /missing/job";
  REQUIRE(trainer.restored_step());
  CHECK(trainer.trouble().find("/missing/job") != std::string::npos);
}

TEST_CASE("second place: a copy that a death ended is made good by the next daemon",
          "[unit][node]") {
  Places places;
  // Any operation there may be the last one.
  const int last = GENERATE(range(0, 40));
  int count = 0;  // The trainer's end works on the disk, too.
  {
    TwoPlacesTrainer trainer(places);
    REQUIRE(trainer.begin_fresh());
    places.disk.set_hook([&](std::string_view, const std::string& path) {
      return path.starts_with("/far") && count++ >= last ? EIO : 0;
    });
    trainer.store(1);
    trainer.clock.advance(std::chrono::seconds(1));
  }
  places.disk.crash(test::Survival::random);
  places.mend();
  TwoPlacesTrainer trainer(places);
  const auto restored = trainer.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{1});
  REQUIRE(trainer.has_copied(1));
  CHECK(places.steps_in(second) == Names{"1"});
}

TEST_CASE("second place: a step that goes from the first while it is copied harms nothing",
          "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.begin_fresh());
  bool has_gone = false;
  places.disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_begun = path.starts_with("/far/job/.step-000000001") && verb == "create";
    if (!is_begun || has_gone) return 0;
    has_gone = true;
    places.disk.erase("/scratch/job/step-000000001");
    return 0;
  });
  trainer.store(1);
  REQUIRE(trainer.pass_until([&] { return has_gone; }));
  trainer.store(2);
  REQUIRE(trainer.has_copied(2));
  CHECK(places.steps_in(second) == Names{"2"});
  CHECK(trainer.trouble().find("step 1 was in /scratch/job, and not there any more") == 0);
  CHECK(trainer.trouble().find("second place") == std::string::npos);
  for (const std::string& path : places.disk.tree())
    CHECK_FALSE(path.starts_with("/far/job/.step"));
}

TEST_CASE("second place: a server of both that is silent is named once", "[unit][node]") {
  Places places;
  TwoPlacesTrainer trainer(places);
  REQUIRE(trainer.begin_fresh());
  trainer.store(1);
  REQUIRE(trainer.has_copied(1));
  CHECK(trainer.trouble().empty());
  SilentServer server;
  places.disk.set_objects(&server);
  CHECK(trainer.trouble() == "no answer from the server");
  server.is_of_place = true;
  CHECK(trainer.trouble() ==
        "no answer from the server of /scratch/job; no answer from the server of /far/job");
  places.disk.set_objects(nullptr);
  CHECK(trainer.trouble().empty());
}

}  // namespace ckpt::node
