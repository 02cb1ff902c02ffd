// ExportScene: a checkpoint on a disk in memory, and its export to /out through a tiny buffer.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "cli/export_plan.hpp"
#include "cli/export_write.hpp"
#include "format/safetensors_image.hpp"
#include "unit/cli/made_steps.hpp"

namespace ckpt::cli {

struct Exported {
  std::map<std::string, MadeTensor> tensors;
  std::map<std::string, std::string> metadata;
};

inline Exported parsed(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto image = format::parse_safetensors(bytes, bytes.size());
  REQUIRE((image ? "" : image.error().message()) == "");
  Exported exported;
  for (const auto& [key, value] : image->metadata) exported.metadata[key] = value;
  for (const format::ImageTensor& each : image->tensors) {
    MadeTensor& tensor = exported.tensors[each.name];
    tensor.name = each.name;
    tensor.dtype = each.dtype;
    tensor.shape = each.shape;
    const auto content = bytes.subspan(each.extent.offset, each.extent.bytes);
    tensor.bytes.assign(content.begin(), content.end());
    CHECK((each.extent.offset % size_of(each.dtype)) == 0);
  }
  return exported;
}

inline void check_same(const MadeTensor& tensor, const MadeTensor& expected) {
  INFO(tensor.name);
  CHECK(tensor.dtype == expected.dtype);
  CHECK(tensor.shape == expected.shape);
  CHECK(tensor.bytes == expected.bytes);
}

class ExportScene : public MadeSteps {
 public:
  ExportScene() {
    disk.put_directory("/out");
    order.directory = "/out";
    order.buffer_bytes = 20;
    wish.file_name = "model.safetensors";
  }
  Result<std::vector<std::string>> try_export(const std::string& path) {
    const auto step = open_step(path);
    std::map<std::uint32_t, ItemForms> forms;
    for (std::uint32_t rank = 0; rank < step->shards->shard_count(); ++rank) {
      const auto record = run(step->shards->whole_record(rank));
      REQUIRE(record);
      CKPT_TRY(forms[rank], run(read_item_forms(*step->shards, *record)));
    }
    const FormsOf forms_of = [&](std::uint32_t rank) -> const ItemForms& { return forms.at(rank); };
    CKPT_TRY(plan, plan_export(step->tensors, forms_of, wish));
    order.attempt = ++attempts;
    return run(write_export(files, *step->shards, plan, order));
  }
  Exported must_export(const std::string& path) {
    const auto paths = try_export(path);
    REQUIRE((paths ? "" : paths.error().message()) == "");
    REQUIRE(paths->size() == 1);
    return parsed(disk.content(paths->front()));
  }
  std::string error_of(const std::string& path) {
    const auto paths = try_export(path);
    return paths ? "" : paths.error().message();
  }
  std::vector<std::string> names_in_out() const {
    std::vector<std::string> names;
    for (const std::string& path : disk.tree())
      if (path.starts_with("/out/") && path != "/out/") names.push_back(path.substr(5));
    return names;
  }

  ExportWish wish;
  ExportOrder order;
  ExportPlan plan;
};

inline ExportWish sharded(std::uint64_t bytes) {
  ExportWish wish;
  wish.is_sharded = true;
  wish.file_bytes_max = bytes;
  return wish;
}

}  // namespace ckpt::cli
