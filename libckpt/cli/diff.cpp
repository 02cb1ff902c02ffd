#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/step_difference.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/workplace.hpp"
#include "storage/member_reader.hpp"

namespace ckpt::cli {

namespace {

constexpr std::uint64_t buffer_bytes = std::uint64_t{64} << 20;

Json step_json(const StoredStep& step) {
  return {{"directory", step.directory},
          {"job", step.manifest->job},
          {"timeline", step.manifest->at.timeline},
          {"step", number(step.manifest->at.step)},
          {"world_size", step.manifest->world_size}};
}

Json difference_json(const Difference& difference) {
  Json json = {{"name", difference.name}, {"kind", name_of(difference.kind)}};
  json["rank"] = difference.rank ? Json(*difference.rank) : Json();
  if (difference.kind == DifferenceKind::values) {
    json["type"] = safetensors_name(difference.dtype);
    json["elements"] = difference.elements;
    json["different"] = difference.values.different;
    json["max_difference"] = difference.values.largest;
    json["not_finite"] = difference.values.not_finite;
  } else if (!difference.one.empty()) {
    json["first"] = difference.one;
    json["second"] = difference.other;
  }
  return json;
}

// "12 of 1024 elements, by 0.0012 at most".
std::string difference_text(const Difference& difference) {
  if (difference.kind == DifferenceKind::type || difference.kind == DifferenceKind::shape)
    return fmt::format("{} {} and {}", name_of(difference.kind), difference.one, difference.other);
  if (difference.kind == DifferenceKind::blob) return "other bytes";
  if (difference.kind != DifferenceKind::values) return std::string(name_of(difference.kind));
  const ElementDifference& values = difference.values;
  std::string text = fmt::format("{} of {} {}", values.different, difference.elements,
                                 safetensors_name(difference.dtype));
  if (values.different > values.not_finite)
    text += fmt::format(", by {:.6g} at most", values.largest);
  if (values.not_finite > 0) text += fmt::format(", {} not finite", values.not_finite);
  return text;
}

// Every byte of it is read: only after damage showed in one of two.
bool is_whole(Workplace& workplace, const StoredStep& step) {
  if (step.memory) return true;             // Its daemon looks for another copy by itself.
  if (step.copies.size() > 1) return true;  // So do its reads, and each of them is damaged.
  const auto report =
      workplace.run(storage::verify_checkpoint(workplace.site(step.directory), "."));
  return report && report->is_good();
}

using SharedStep = std::shared_ptr<StoredStep>;

// Which of the two showed the damage. One that is put together has it only if the other is whole.
SharedStep& damaged_of(Workplace& workplace, SharedStep& one, SharedStep& other) {
  if (!is_whole(workplace, *one)) return one;
  return one->copies.size() < 2 || !is_whole(workplace, *other) ? other : one;
}

}  // namespace

Result<Outcome> diff(const DiffOptions& given) {
  Workplace workplace;
  const auto open = [&](const std::string& path) {
    return workplace.run(open_stored_step(workplace.site(path), given.runtime_dir));
  };
  CKPT_TRY(auto one, open(given.one));
  CKPT_TRY(auto other, open(given.other));
  const TensorChoice choice{given.names, ""};
  auto found = workplace.run(compare_steps(one, other, choice, buffer_bytes));
  while (!found && found.error().code() == Errc::corruption) {
    SharedStep& damaged = damaged_of(workplace, one, other);
    if (damaged->others.empty()) break;
    CKPT_TRY(damaged, workplace.run(open_next(damaged, Error(found.error()))));
    found = workplace.run(compare_steps(one, other, choice, buffer_bytes));
  }
  if (!found) {
    for (const auto& step : {one, other}) {
      Error error = explain(workplace, *step, Error(found.error()));
      if (error.code() == Errc::unavailable) return fail(std::move(error));
    }
    return fail(Error(found.error()));
  }
  Outcome outcome;
  outcome.is_trouble = !found->differences.empty();
  outcome.json = {{"first", step_json(*one)},
                  {"second", step_json(*other)},
                  {"equal", found->differences.empty()},
                  {"tensors_compared", found->tensors_compared},
                  {"blobs_compared", found->blobs_compared}};
  outcome.json["differences"] = Json::array();
  Table table("lrl", {"NAME", "RANK", "DIFFERENCE"});
  for (const Difference& difference : found->differences) {
    outcome.json["differences"].push_back(difference_json(difference));
    table.add({difference.name, difference.rank ? std::to_string(*difference.rank) : "",
               difference_text(difference)});
  }
  outcome.text = fmt::format("first:  {}: {}\nsecond: {}: {}\n", printable(one->directory),
                             title_of(*one->manifest), printable(other->directory),
                             title_of(*other->manifest));
  if (!table.is_empty()) outcome.text += "\n" + table.to_text(0, text_width()) + "\n";
  outcome.text += fmt::format(
      "{} and {} compared: {}\n", counted(std::to_string(found->tensors_compared), "tensor"),
      counted(std::to_string(found->blobs_compared), "blob"),
      outcome.is_trouble ? counted(std::to_string(found->differences.size()), "difference")
                         : "all the same");
  if (one->manifest->world_size != other->manifest->world_size)
    outcome.text += "The ranks' blobs were not compared: another number of ranks saved each.\n";
  note_if_older(one->is_older ? *one : *other, outcome);
  return outcome;
}

}  // namespace ckpt::cli
