#include <fmt/format.h>

#include <algorithm>

#include "arena/arena_limits.hpp"
#include "cli/commands.hpp"
#include "cli/item_forms.hpp"
#include "cli/metrics_text.hpp"
#include "cli/stored_step.hpp"
#include "cli/table.hpp"
#include "cli/tensor_choice.hpp"
#include "cli/terminal.hpp"
#include "cli/workplace.hpp"

namespace ckpt::cli {

namespace {

using gather::HeldPart;
using gather::ListedTensor;

template <class Number>
std::string shape_text(const std::vector<Number>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// "[0:3, :]" of a box, "3..8" of a flat range.
std::string place_text(const Piece& piece, const std::vector<std::int64_t>& shape) {
  const Region region = format::region_of(piece, shape);
  if (const auto* range = std::get_if<FlatRange>(&region))
    return fmt::format("elements {} to {}", range->begin, range->begin + range->count);
  return plan::describe(std::get<Box>(region), piece.global_shape);
}

std::string part_text(const HeldPart& part) {
  const format::TensorPlace& place = *part.place;
  std::string text = fmt::format("rank {}: ", part.rank);
  if (!place.piece) return text + "whole";
  text += place.extent.bytes == 0 ? "nothing" : place_text(*place.piece, place.shape);
  if (!place.piece->order.empty())
    text += fmt::format(", dimensions in memory {}", fmt::join(place.piece->order, " "));
  if (place.piece->copy > 0) text += fmt::format(", copy {}", place.piece->copy);
  return text;
}

// "0-3, 6".
std::string ranks_text(const std::vector<HeldPart>& parts) {
  std::string text;
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin + 1;
    while (end < parts.size() && parts[end].rank == parts[end - 1].rank + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", parts[begin].rank);
    if (end - begin > 1) text += fmt::format("-{}", parts[end - 1].rank);
    begin = end;
  }
  return text;
}

std::string summary_of(const ListedTensor& tensor) {
  const auto pieces = static_cast<std::size_t>(std::ranges::count_if(
      tensor.parts, [](const HeldPart& part) { return part.place->piece.has_value(); }));
  const char* ranks = tensor.parts.size() == 1 ? "rank" : "ranks";
  std::string text = fmt::format("{} {}", ranks, ranks_text(tensor.parts));
  if (pieces > 0) text = counted(std::to_string(pieces), "piece") + ", " + text;
  if (!tensor.is_alike) text += ", not alike";
  if (!tensor.alias_of.empty()) text += fmt::format(", tied to {}", tensor.alias_of);
  return text;
}

Json part_json(const HeldPart& part) {
  const format::TensorPlace& place = *part.place;
  Json json = {{"rank", part.rank},
               {"dtype", safetensors_name(place.dtype)},
               {"shape", place.shape},
               {"bytes", place.extent.bytes}};
  if (!place.piece) return json;
  json["global_shape"] = place.piece->global_shape;
  if (place.piece->flat_begin) {
    json["flat_begin"] = *place.piece->flat_begin;
  } else {
    json["offset"] = place.piece->offset;
  }
  if (!place.piece->order.empty()) json["order"] = place.piece->order;
  json["copy"] = place.piece->copy;
  return json;
}

Json tensor_json(const ListedTensor& tensor) {
  Json json = {{"name", tensor.name},
               {"dtype", safetensors_name(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.bytes()},
               {"alike", tensor.is_alike}};
  json["tied_to"] = tensor.alias_of.empty() ? Json() : Json(tensor.alias_of);
  json["file"] = tensor.archive_file.empty() ? Json() : Json(tensor.archive_file);
  json["parts"] = Json::array();
  for (const HeldPart& part : tensor.parts) json["parts"].push_back(part_json(part));
  return json;
}

struct Blob {
  std::string name;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> bytes_by_rank;
};

// Those of all ranks, by name.
std::vector<Blob> blobs_of(const gather::KnownShards& shards, const TensorChoice& choice) {
  std::map<std::string, Blob> by_name;
  for (std::uint32_t rank = 0; rank < shards.shard_count(); ++rank) {
    const format::ShardRecord& record = shards.record(rank);
    for (std::size_t index = 0; index < record.blobs.size(); ++index) {
      if (!is_chosen(choice, record.blob_names[index])) continue;
      Blob& blob = by_name[record.blob_names[index]];
      blob.name = record.blob_names[index];
      blob.bytes_by_rank.emplace_back(rank, record.blobs[index].bytes);
    }
  }
  std::vector<Blob> blobs;
  for (auto& [name, blob] : by_name) blobs.push_back(std::move(blob));
  return blobs;
}

void add_blobs(const std::vector<Blob>& blobs, Outcome& outcome) {
  outcome.json["blobs"] = Json::array();
  Table table("lrr", {"BLOB", "SIZE", "RANKS"});
  for (const Blob& blob : blobs) {
    Json json = {{"name", blob.name}, {"parts", Json::array()}};
    std::uint64_t bytes = 0;
    for (const auto& [rank, size] : blob.bytes_by_rank) {
      json["parts"].push_back({{"rank", rank}, {"bytes", size}});
      bytes += size;
    }
    outcome.json["blobs"].push_back(std::move(json));
    table.add({blob.name, arena::human_bytes(bytes), std::to_string(blob.bytes_by_rank.size())});
  }
  if (!table.is_empty()) outcome.text += "\n" + table.to_text(0, text_width());
}

void add_pieces(const std::vector<const ListedTensor*>& tensors, Outcome& outcome) {
  for (const ListedTensor* tensor : tensors) {
    outcome.text += "\n" + printable(tensor->name) + "\n";
    for (const HeldPart& part : tensor->parts) outcome.text += "    " + part_text(part) + "\n";
  }
}

}  // namespace

Result<Outcome> inspect(const InspectOptions& given) {
  Workplace workplace;
  CKPT_TRY(const auto step,
           workplace.run(open_stored_step(workplace.site(given.path), given.runtime_dir)));
  const TensorChoice choice{given.names, ""};
  Outcome outcome;
  outcome.json = {{"directory", step->directory},
                  {"job", step->manifest->job},
                  {"timeline", step->manifest->at.timeline},
                  {"step", number(step->manifest->at.step)},
                  {"world_size", step->manifest->world_size},
                  {"metrics", to_json(step->manifest->metrics)}};
  outcome.json["tensors"] = Json::array();
  Table table("llrrl", {"TENSOR", "TYPE", "SHAPE", "SIZE", "WHERE"});
  std::vector<const ListedTensor*> shown;
  std::uint64_t bytes = 0;
  for (const ListedTensor& tensor : step->tensors) {
    if (!is_chosen(choice, tensor.name)) continue;
    shown.push_back(&tensor);
    outcome.json["tensors"].push_back(tensor_json(tensor));
    table.add({tensor.name, std::string(safetensors_name(tensor.dtype)), shape_text(tensor.shape),
               arena::human_bytes(tensor.bytes()), summary_of(tensor)});
    if (tensor.alias_of.empty()) bytes += tensor.bytes();
  }
  outcome.text =
      fmt::format("{}\n{}: {}, {}\n", printable(step->directory), title_of(*step->manifest),
                  counted(std::to_string(shown.size()), "tensor"), arena::human_bytes(bytes));
  if (!step->manifest->metrics.empty())
    outcome.text += fmt::format("metrics: {}\n", printable(to_text(step->manifest->metrics)));
  if (!table.is_empty()) outcome.text += "\n" + table.to_text(0, text_width());
  if (given.pieces) add_pieces(shown, outcome);
  const std::vector<Blob> blobs = blobs_of(*step->shards, choice);
  add_blobs(blobs, outcome);
  if (shown.empty() && blobs.empty() && !given.names.empty())
    return fail(nothing_chosen(choice, step->tensors));
  note_if_older(*step, outcome);
  return outcome;
}

}  // namespace ckpt::cli
