// Goal:   `ckpt status` says each thing once, and in one sense.
// Method: answers of a daemon, written by hand, become text.
#include "cli/status_text.hpp"

#include <catch2/catch.hpp>

using Catch::Contains;
using Catch::EndsWith;

namespace ckpt::cli {
namespace {

// A job of one rank that has stored step 4.
Json answer() {
  return Json::parse(R"({
    "daemon": {"version": "0.1.0", "pid": 7, "runtime_dir": "/run/x", "log_file": "/run/x/log",
               "up_seconds": 5, "is_ending": false, "confined_to": []},
    "memory": {"budget_bytes": 1048576, "used_bytes": 0},
    "jobs": [{"job": "gpt2", "node": "A", "world_size": 1, "directory": "/ckpt/gpt2",
              "committed": {"timeline": 1, "step": 4}, "durable": {"timeline": 1, "step": 4},
              "storage_reached": true, "sees_all_nodes": true,
              "copies_sent": {"bytes": 0, "bytes_unchanged": 0},
              "flushed": {"bytes": 8388608, "bytes_shared": 0},
              "steps": [{"timeline": 1, "step": 4, "level": "durable", "ranks_in_memory": 1,
                         "copies": 1, "on_storage": true, "damaged_there": false}]}]})");
}

std::string line_with(const std::string& text, const std::string& part) {
  const auto at = text.find(part);
  if (at == std::string::npos) return "";
  const auto begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

TEST_CASE("status text: bytes that saves share are counted in a line, if there are any",
          "[unit][cli]") {
  Json status = answer();
  CHECK_THAT(to_text(status), !Contains("saves:") && !Contains("copies:"));
  status["jobs"][0]["flushed"]["bytes_shared"] = 25165824u;
  CHECK(line_with(to_text(status), "saves:") ==
        "  saves: 8.0 MiB written to storage, 24.0 MiB unchanged and shared");
  CHECK_THAT(to_text(status), !Contains("copies:"));
  status["jobs"][0]["copies_sent"] = {{"bytes", 4194304u}, {"bytes_unchanged", 1048576u}};
  CHECK(line_with(to_text(status), "copies:") ==
        "  copies: 4.0 MiB sent to peers, 1.0 MiB unchanged and not sent");
}

TEST_CASE("status text: a step is shown with the number of ranks that saved it", "[unit][cli]") {
  Json status = answer();
  Json& step = status["jobs"][0]["steps"][0];
  CHECK_THAT(line_with(to_text(status), "durable"), Contains("1 of 1 rank, 1 copy"));
  step["saved_by"] = 4u;
  step["ranks_in_memory"] = 3u;
  CHECK_THAT(line_with(to_text(status), "durable"), Contains("3 of 4 ranks, 1 copy"));
}

TEST_CASE("status text: how much of a restore came from storage stands beside its rank",
          "[unit][cli]") {
  Json status = answer();
  Json& rank = status["jobs"][0]["ranks"][0];
  rank = {{"rank", 0},     {"process", 77},   {"attached", true},   {"phase", "training"},
          {"timeline", 2}, {"last_seen", 9u}, {"restored", nullptr}};
  const auto restored = [&](std::uint64_t bytes_from_storage) {
    rank["restored"] = {{"timeline", 1},
                        {"step", 4u},
                        {"source", "storage"},
                        {"bytes", 8388608u},
                        {"bytes_from_storage", bytes_from_storage}};
    return line_with(to_text(status), "training");
  };
  CHECK_THAT(line_with(to_text(status), "training"), EndsWith(" -"));
  CHECK_THAT(restored(0), EndsWith(" 9  step 4 from memory"));
  CHECK_THAT(restored(8388608), EndsWith(" 9  step 4 from storage"));
  CHECK_THAT(restored(2097152), EndsWith(" 9  step 4, 2.0 MiB of 8.0 MiB from storage"));
}

TEST_CASE("status text: a step that is damaged on storage is not said to be there", "[unit][cli]") {
  Json status = answer();
  CHECK_THAT(to_text(status), Contains("on storage step 4 (timeline 1)\n"));
  CHECK_THAT(to_text(status), !Contains("DAMAGED"));
  Json& step = status["jobs"][0]["steps"][0];
  CHECK_THAT(line_with(to_text(status), "durable"), Contains("yes"));
  step["damaged_there"] = true;
  step["on_storage"] = false;
  CHECK_THAT(to_text(status), Contains("on storage step 4 (timeline 1), DAMAGED\n"));
  CHECK_THAT(line_with(to_text(status), "1 of 1"), Contains("DAMAGED") && !Contains("yes"));
  step["timeline"] = 2;  // Another step of this number.
  CHECK_THAT(to_text(status), Contains("on storage step 4 (timeline 1)\n"));
}

TEST_CASE("status text: who took the place of a live trainer is named", "[unit][cli]") {
  Json status = answer();
  CHECK_THAT(to_text(status), !Contains("taken over"));
  Json& taken = status["jobs"][0]["taken_over"][0];
  taken = {{"rank", 3u},
           {"older_process", 17},
           {"newer_process", 18},
           {"captured", 40u},
           {"seconds_ago", 5u}};
  CHECK(line_with(to_text(status), "taken over") ==
        "  taken over: rank 3, by pid 18 from pid 17, which was alive and had captured step 40, "
        "5 s ago: later steps of pid 17 are not saved");
  taken["captured"] = nullptr;
  CHECK_THAT(to_text(status), Contains("had captured no step, 5 s ago"));
}

TEST_CASE("status text: a confined daemon's directories are named", "[unit][cli]") {
  Json status = answer();
  CHECK_THAT(to_text(status), !Contains("only below"));
  status["daemon"]["confined_to"] = {"/ckpt", "/scratch"};
  CHECK_THAT(to_text(status), Contains("\nchanges files only below /ckpt, /scratch\n"));
}

TEST_CASE("status text: a job that is degraded or lacks a trainer is trouble", "[unit][cli]") {
  Json status = answer();
  CHECK_FALSE(has_trouble(status));
  status["jobs"][0]["degraded"] = "a node is away";
  CHECK(has_trouble(status));
  status["jobs"][0]["degraded"] = nullptr;
  status["jobs"][0]["ranks_missing"] = {0u};
  CHECK(has_trouble(status));
  status["jobs"][0]["ended"] = true;
  CHECK_FALSE(has_trouble(status));
}

}  // namespace ckpt::cli
