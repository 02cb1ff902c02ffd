// Goal:   half of a declared tensor is stored like any other step, the job says what is missing
//         until a whole one is stored, and the last whole step stays until then. A job in memory
//         alone says it, too.
// Method: one rank declares the first half of a tensor, or all of it, and stores steps; a rank of
//         another node leaves a part out of what it captures.
#include <nlohmann/json.hpp>

#include "format/piece.hpp"
#include "storage/step_directory.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

namespace {

using Catch::Contains;

constexpr std::uint64_t half = 3 * KiB;

struct Trainer : test::OneRank {
  explicit Trainer(test::MemoryDisk& disk) : OneRank(disk) {
    request.save_storage_interval.steps = 1;
    request.max_ckpt_num = 1;
  }
  // From now on it saves the first `half` bytes of so many.
  void declare(std::uint64_t whole) {
    format::TensorSpec spec{"weight", DType::u8, {half}, "", ""};
    spec.piece.emplace();
    spec.piece->global_shape = {whole};
    spec.piece->offset = {0};
    spec.piece = format::normalized(std::move(spec.piece), spec.shape);
    layout = format::make_layout(std::span(&spec, 1), 0, 0, layout.version + 1).value();
    REQUIRE(engine->call(session, control::SetLayout{layout}));
    clock.advance(std::chrono::seconds(1));
  }
  void store(std::uint64_t step) {
    REQUIRE(pass_until([&] { return !granted.empty(); }));
    capture(Step{step});
    REQUIRE(pass_until([&] { return durable == Step{step}; }));
    clock.advance(std::chrono::seconds(5));
  }
  nlohmann::json status() const { return nlohmann::json::parse(engine->status_json())["jobs"][0]; }
  std::string degraded() const {
    const nlohmann::json text = status()["degraded"];
    return text.is_null() ? std::string() : text.get<std::string>();
  }
  std::vector<std::uint64_t> stored() {
    const auto names = test::finish(clock, test::start(context, files.list("/scratch/job")));
    REQUIRE(names);
    std::vector<std::uint64_t> steps;
    for (const os::DirectoryEntry& entry : *names)
      if (const auto parsed = storage::parse_step_directory(entry.name))
        steps.push_back(number(parsed->step));
    std::ranges::sort(steps);
    return steps;
  }
};

using Steps = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("coverage check: a piece that nobody saved is named after the first publish",
          "[unit][node]") {
  // `as`: else the second one refers to a temporary.
  const std::uint64_t whole = GENERATE(as<std::uint64_t>{}, half, 2 * half);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  Trainer rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.declare(whole);
  rank.store(1);
  const auto missing = rank.status()["missing_pieces"];
  if (whole == half) {
    CHECK(missing.is_null());
    CHECK(rank.degraded().empty());
  } else {
    REQUIRE(missing.is_object());
    CHECK(missing["what"] == "weight[3072:6144]");
    CHECK(missing["tensors"] == 1);
    CHECK_THAT(rank.degraded(), Contains("steps from 1 on are stored without weight[3072:6144]"));
  }
}

TEST_CASE("coverage check: the last whole step stays until a newer whole one is stored",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  Trainer rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.declare(half);
  rank.store(1);
  rank.store(2);
  CHECK(rank.stored() == Steps{2});
  rank.declare(2 * half);
  rank.store(3);
  CHECK(rank.stored() == Steps{2, 3});
  CHECK_THAT(rank.degraded(), Contains("steps from 3 on are stored without weight[3072:6144]") &&
                                  Contains("step 2, which lacks less, is kept"));
  rank.store(4);
  CHECK(rank.stored() == Steps{2, 4});
  CHECK_THAT(rank.degraded(), Contains("steps from 3 on"));
  rank.declare(half);
  rank.store(5);
  CHECK(rank.stored() == Steps{5});
  CHECK(rank.degraded().empty());
}

TEST_CASE("coverage check: nothing is kept for what a job never saves", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  Trainer rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.declare(2 * half);
  for (const std::uint64_t step : {1, 2, 3}) {
    rank.store(step);
    CHECK(rank.stored() == Steps{step});
  }
  CHECK_THAT(rank.degraded(), Contains("steps from 1 on") && !Contains("is kept"));
}

TEST_CASE("coverage check: a new daemon keeps the last whole step, too", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    Trainer rank(disk);
    REQUIRE(rank.begin_fresh());
    rank.declare(half);
    rank.store(1);
    rank.declare(2 * half);
    rank.store(2);
  }
  Trainer rank(disk);
  REQUIRE(rank.attach());
  rank.declare(2 * half);
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value() && !rank.granted.empty(); }));
  rank.store(3);
  CHECK(rank.stored() == Steps{1, 3});
  CHECK_THAT(rank.degraded(), Contains("step 1, which lacks less, is kept"));
}

TEST_CASE("coverage check: what a rank of another node leaves out of memory is named",
          "[unit][node]") {
  test::Cluster cluster;
  const std::string places = GENERATE("A", "AB", "BA");
  cluster.begin(places);
  const std::string first(1, places.front());
  const auto last = static_cast<std::uint32_t>(places.size() - 1);
  const auto missing = [&] { return cluster.status(first).at("missing_pieces"); };
  cluster.commit(Step{1});
  CHECK(missing().is_null());
  cluster.declare(last, test::Cluster::Share::half);
  cluster.commit(Step{2});
  REQUIRE(cluster.pass_until([&] { return !missing().is_null(); }));
  const std::string what = last == 0 ? "weight[15360:30720]" : "weight[23040:30720]";
  CHECK(missing().at("what") == what);
  CHECK(missing().at("step") == 2);
  cluster.commit(Step{3});
  REQUIRE(cluster.pass_until([&] { return missing().at("step") == 3; }));
  CHECK_THAT(
      cluster.status(first).at("degraded").get<std::string>(),
      Contains("steps from 2 on are in memory without " + what + ", which no rank has saved"));
  cluster.declare(last, test::Cluster::Share::all);
  cluster.commit(Step{4});
  CHECK(cluster.pass_until([&] { return missing().is_null(); }));
}

}  // namespace ckpt::node
