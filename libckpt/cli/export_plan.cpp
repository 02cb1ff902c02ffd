#include "cli/export_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/assert.hpp"
#include "format/piece.hpp"

namespace ckpt::cli {

namespace {

using gather::ListedTensor;

std::string rank_list(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (std::size_t index = 0; index < std::min<std::size_t>(ranks.size(), 4); ++index)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[index]);
  return ranks.size() > 4 ? text + ", ..." : text;
}

Result<std::uint32_t> reader_of(const ListedTensor& tensor, const ExportWish& wish,
                                std::vector<std::uint32_t>& others) {
  std::vector<std::uint32_t> ranks = tensor.whole_in();
  if (ranks.size() < 2) return ranks.empty() ? 0 : ranks.front();
  if (wish.rank) {
    if (std::ranges::find(ranks, *wish.rank) != ranks.end()) return *wish.rank;
    return fail(Errc::unsupported,
                fmt::format("tensor \"{}\": ranks {} have saved it whole, and rank {} has not",
                            tensor.name, rank_list(ranks), *wish.rank));
  }
  const std::uint32_t first = ranks.front();
  others.assign(ranks.begin() + 1, ranks.end());
  return first;
}

// A tensor that only one rank is asked for may be another one elsewhere.
Status check_alike(const ListedTensor& tensor, const ExportWish& wish) {
  if (tensor.is_alike || (wish.rank && tensor.is_each_ranks_own())) return {};
  std::vector<std::uint32_t> ranks;
  for (const gather::HeldPart& part : tensor.parts) ranks.push_back(part.rank);
  return fail(Errc::unsupported,
              fmt::format("tensor \"{}\": ranks {} have saved it with different types or shapes; "
                          "take that of one with --rank, or leave it out with --names",
                          tensor.name, rank_list(ranks)));
}

Error no_such_type(const ListedTensor& tensor, const ItemForm& form) {
  return Error(Errc::unsupported,
               fmt::format("tensor \"{}\" is of type {}, which safetensors does not have: leave it "
                           "out with --names",
                           tensor.name, form.type));
}

Result<ExportTensor> planned(const ListedTensor& tensor, const FormsOf& forms_of,
                             const ExportWish& wish) {
  CKPT_CHECK(check_alike(tensor, wish));
  ExportTensor made;
  CKPT_TRY(made.source.rank, reader_of(tensor, wish, made.other_ranks));
  made.source.name = tensor.name;
  made.source.part_names = tensor.part_names;
  made.source.dtype = tensor.dtype;
  made.source.shape = tensor.shape;
  const auto rank = describing_rank(tensor, wish);
  const auto whole = std::ranges::find_if(tensor.parts, [&](const gather::HeldPart& part) {
    return rank == part.rank && !part.place->piece;
  });
  if (whole != tensor.parts.end()) {
    made.source.dtype = whole->place->dtype;
    made.source.shape = format::global_shape_of({}, whole->place->shape);
  }
  made.plain.name = chosen_name(wish.choice, tensor.name);
  made.plain.dtype = made.source.dtype;
  made.plain.shape = made.source.shape;
  made.plain.bytes = plan::count_of(made.source.shape) * size_of(made.source.dtype);
  if (whole != tensor.parts.end()) {
    const ItemForms& forms = forms_of(whole->rank);
    if (const auto form = forms.find(tensor.name); form != forms.end()) {
      CKPT_TRY(made.plain.shape, take_form(form->second, made.source));
      if (made.plain.shape != form->second.shape) return fail(no_such_type(tensor, form->second));
    }
  }
  return made;
}

// Readers need elements that are aligned, and packed tensors are if the largest come first.
void sort_for_file(std::vector<ExportTensor>& tensors) {
  std::ranges::sort(tensors, [](const ExportTensor& one, const ExportTensor& other) {
    const std::size_t size = size_of(one.plain.dtype);
    const std::size_t other_size = size_of(other.plain.dtype);
    return size != other_size ? size > other_size
                              : gather::is_before(one.plain.name, other.plain.name);
  });
}

std::vector<ExportFile> divided(std::vector<ExportTensor> tensors, const ExportWish& wish) {
  std::vector<ExportFile> files(1);
  for (ExportTensor& tensor : tensors) {
    const bool is_full = wish.is_sharded && !files.back().tensors.empty() &&
                         tensor.plain.bytes > wish.file_bytes_max -
                                                  std::min(files.back().bytes, wish.file_bytes_max);
    if (is_full) files.emplace_back();
    files.back().bytes += tensor.plain.bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t index = 0; index < files.size(); ++index) {
    sort_for_file(files[index].tensors);
    files[index].name = !wish.is_sharded    ? wish.file_name
                        : files.size() == 1 ? single_name
                                            : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                          index + 1, files.size());
  }
  return files;
}

}  // namespace

std::optional<std::uint32_t> describing_rank(const ListedTensor& tensor, const ExportWish& wish) {
  if (tensor.is_each_ranks_own()) return wish.rank ? *wish.rank : tensor.whole_in().front();
  for (const gather::HeldPart& part : tensor.parts)
    if (!part.place->piece) return part.rank;
  return std::nullopt;
}

Result<ExportPlan> plan_export(const std::vector<ListedTensor>& tensors, const FormsOf& forms_of,
                               const ExportWish& wish) {
  ExportPlan plan;
  std::map<std::string, std::string> kept;  // By the name that has the bytes, the first one chosen.
  std::vector<const ListedTensor*> chosen;
  for (const ListedTensor& tensor : tensors) {
    const bool is_taken = tensor.archive_file.empty() && is_chosen(wish.choice, tensor.name);
    if (is_taken) chosen.push_back(&tensor);
    if (!is_taken) ++plan.left_out;
    if (is_taken && tensor.alias_of.empty()) kept[tensor.name] = tensor.name;
  }
  std::vector<ExportTensor> planned_tensors;
  for (const ListedTensor* tensor : chosen) {
    if (!tensor->alias_of.empty() && !wish.copies_tied) {
      const auto [holder, is_new] = kept.try_emplace(tensor->alias_of, tensor->name);
      if (!is_new) {
        plan.tied.push_back(
            {chosen_name(wish.choice, holder->second), chosen_name(wish.choice, tensor->name)});
        continue;
      }
    }
    CKPT_TRY(ExportTensor made, planned(*tensor, forms_of, wish));
    planned_tensors.push_back(std::move(made));
  }
  if (planned_tensors.empty()) return fail(nothing_chosen(wish.choice, tensors));
  plan.files = divided(std::move(planned_tensors), wish);
  return plan;
}

std::string index_json(const ExportPlan& plan) {
  nlohmann::ordered_json index;
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> file_of;
  for (const ExportFile& file : plan.files) {
    bytes += file.bytes;
    for (const ExportTensor& tensor : file.tensors) file_of[tensor.plain.name] = file.name;
  }
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = nlohmann::ordered_json::object();
  for (const auto& [name, file] : file_of) index["weight_map"][name] = file;
  return index.dump(2) + "\n";
}

bool is_model_file(std::string_view name) {
  if (name == index_name || name == single_name) return true;
  constexpr std::string_view begin = "model-", middle = "-of-", end = ".safetensors";
  if (!name.starts_with(begin) || !name.ends_with(end)) return false;
  name = name.substr(begin.size(), name.size() - begin.size() - end.size());
  const auto is_number = [](std::string_view text) {
    return text.size() >= 5 &&
           std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  const auto at = name.find(middle);
  return at != std::string_view::npos && is_number(name.substr(0, at)) &&
         is_number(name.substr(at + middle.size()));
}

}  // namespace ckpt::cli
