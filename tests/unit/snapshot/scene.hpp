// Scene: a small model in memory with its layout, for the tests of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "base/units.hpp"
#include "format/layout.hpp"
#include "format/safetensors_header.hpp"
#include "snapshot/copy_plan.hpp"
#include "snapshot/restorer.hpp"

namespace ckpt::snapshot {

struct SceneTensor {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_guarded = false;
};

class Scene {
 public:
  explicit Scene(const std::vector<SceneTensor>& tensors, std::uint64_t blob_capacity = 0) {
    std::vector<format::TensorSpec> specs;
    for (const SceneTensor& tensor : tensors) {
      specs.push_back({tensor.name, DType::u8, {static_cast<std::int64_t>(tensor.bytes)}, ""});
      memory_.push_back(std::make_unique<std::vector<std::byte>>(tensor.bytes));
    }
    layout = format::make_layout(specs, 0, blob_capacity).value();
    for (const auto& place : layout.tensors) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].name != place.name) continue;
        contents.push_back(memory_[i].get());
        sources.push_back({memory_[i]->data(), 0, tensors[i].is_guarded});
      }
    }
    format::HeaderFacts facts;
    facts.job = "scene";
    facts.run = to_hex(Digest{});
    header = format::render_header(layout, facts).value();
    slot.assign(layout.slot_bytes, std::byte{0xee});
  }

  void fill(std::uint64_t seed) {
    Random random(seed);
    for (auto* content : contents)
      for (std::byte& byte : *content) byte = static_cast<std::byte>(random.next());
  }
  std::vector<std::vector<std::byte>> copy_of_contents() const {
    std::vector<std::vector<std::byte>> copy;
    for (const auto* content : contents) copy.push_back(*content);
    return copy;
  }
  std::vector<std::byte> captured(std::size_t tensor) const {
    const format::Extent extent = layout.tensors[tensor].extent;
    return {slot.begin() + static_cast<std::ptrdiff_t>(extent.offset),
            slot.begin() + static_cast<std::ptrdiff_t>(extent.end())};
  }
  std::vector<Target> targets() {
    std::vector<Target> out;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const auto& place = layout.tensors[i];
      out.push_back({place.name, place.dtype, place.shape, contents[i]->data(), 0});
    }
    return out;
  }

  format::Layout layout;
  std::vector<std::byte> header;
  std::vector<Source> sources;                    // In the layout's order.
  std::vector<std::vector<std::byte>*> contents;  // The same order.
  std::vector<std::byte> slot;

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

}  // namespace ckpt::snapshot
