// DcpMetadata: the file `.metadata` of a checkpoint of torch.distributed.checkpoint.
//
// It is a pickle of that module's own classes, and says of each tensor where its archive lies. The
// tensors are whole: the reader takes what it needs of them, in any world.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::format {

inline constexpr const char* dcp_metadata_name = ".metadata";
// As torch names the first file of rank 0.
inline constexpr const char* dcp_file_name = "__0_0.distcp";

struct DcpTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  Extent archive;  // In the file: one that torch.load opens, of this tensor alone.
};

// Tensors with one archive are tied: both names are there.
std::vector<std::byte> write_dcp_metadata(std::span<const DcpTensor> tensors);

}  // namespace ckpt::format
