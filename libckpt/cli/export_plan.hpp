// ExportPlan: which tensor goes into which file, under which name and in which form.
//
// A pure function of the checkpoint's description. The order does not depend on the number of ranks
// that saved: so the same state exports to the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/item_forms.hpp"
#include "cli/tensor_choice.hpp"
#include "format/safetensors_plain.hpp"
#include "gather/batches.hpp"
#include "gather/tensor_list.hpp"

namespace ckpt::cli {

struct ExportTensor {
  format::PlainTensor plain;               // As the file has it.
  gather::TensorToRead source;             // As the checkpoint has it.
  std::vector<std::uint32_t> other_ranks;  // Have it whole as well; their bytes must be the same.
};

struct ExportFile {
  std::string name;
  std::vector<ExportTensor> tensors;
  std::uint64_t bytes = 0;  // All tensors together.
};

// Two names of one tensor. Only the first one is written.
struct Tied {
  std::string kept;
  std::string other;
};

struct ExportWish {
  TensorChoice choice;
  bool is_sharded = false;            // As Hugging Face does it.
  std::uint64_t file_bytes_max = 0;   // Then: of the tensors of one file.
  std::string file_name;              // Else.
  std::optional<std::uint32_t> rank;  // Its whole tensors count where several ranks have one.
  bool copies_tied = false;           // Each name gets the bytes.
};

struct ExportPlan {
  std::vector<ExportFile> files;
  std::vector<Tied> tied;
  std::size_t left_out = 0;  // Tensors that were not chosen.
};

// The rank whose items describe a whole tensor; none: there are only pieces.
std::optional<std::uint32_t> describing_rank(const gather::ListedTensor& tensor,
                                             const ExportWish& wish);

// `forms_of(rank)` is asked for ranks that describe chosen tensors. Errors: not_found (nothing is
// chosen), invalid_argument (no such rank), unsupported (a tensor that no safetensors file can
// hold, or one that is not the same tensor on all ranks: names it, and says what to do).
using FormsOf = std::function<const ItemForms&(std::uint32_t rank)>;
Result<ExportPlan> plan_export(const std::vector<gather::ListedTensor>& tensors,
                               const FormsOf& forms_of, const ExportWish& wish);

// The index that Hugging Face expects beside several files.
std::string index_json(const ExportPlan& plan);
inline constexpr const char* index_name = "model.safetensors.index.json";
inline constexpr const char* single_name = "model.safetensors";
// Whether a file of this name belongs to a model as Hugging Face stores it.
bool is_model_file(std::string_view name);

}  // namespace ckpt::cli
