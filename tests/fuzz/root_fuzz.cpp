// Goal:   no manifest, run marker or history of timelines is misread.
// Method: the fuzzer cannot guess a digest, so the input is sealed anew before it is read.
#include <string>

#include "format/manifest.hpp"
#include "format/run_files.hpp"
#include "format/sealed_json.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

namespace {

std::string sealed(std::string_view text) {
  const auto seal = text.rfind("\"digest\":\"");
  std::string body(text.substr(0, seal == text.npos ? text.size() : seal));
  if (!body.ends_with(",\n")) body += ",\n";
  return format::seal_json(std::move(body));
}

}  // namespace

void fuzz_one(Bytes input) {
  const std::string text = sealed(text_of(input));
  if (const auto manifest = format::parse_manifest(text)) {
    const bool is_version_1 = !manifest->shards.empty() && manifest->shards[0].embedded != nullptr;
    if (!is_version_1) {
      const auto again = format::render(*manifest);
      promise(again.has_value(), "a manifest that was read can be written");
      const auto back = format::parse_manifest(*again);
      promise(back && format::render(*back).value() == *again, "a manifest is read as written");
    }
    promise(manifest->shards.size() == manifest->world_size, "a manifest has all ranks");
  }
  if (const auto marker = format::parse_run_marker(text))
    promise(format::parse_run_marker(format::render(*marker)).value() == *marker,
            "a marker is kept");
  if (const auto words = format::parse_retention(text))
    promise(format::parse_retention(format::render(*words)).value() == *words,
            "what is kept is kept");
  if (const auto timelines = format::parse_timelines(text)) {
    promise(format::parse_timelines(format::render(*timelines)).value() == *timelines,
            "a history is kept");
  }
}

}  // namespace ckpt::fuzz
