// ImportSource: the tensors of files that other programs wrote, and where their bytes lie.
//
// A path is a safetensors file, a torch archive (zip), the index of a model of several such files,
// or a directory that holds one of these. The content decides, not the name. Each file's
// description is checked before any of it is believed: no overlap, nothing outside of the file,
// sizes that fit their shapes; the bytes of a torch archive are compared with its checksums.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/layout.hpp"
#include "os/file_system.hpp"

namespace ckpt::cli {

struct ImportTensor {
  format::TensorSpec spec;
  std::size_t file = 0;  // Index into `files`.
  format::Extent bytes;  // In that file. An alias has those of the tensor that it names.
};

struct ImportSource {
  std::vector<std::string> paths;
  std::vector<std::unique_ptr<os::File>> files;  // Parallel to `paths`.
  std::vector<ImportTensor> tensors;             // Each name is there once.
  std::size_t left_out = 0;                      // Values in torch archives that are no tensors.
};

// `prefix`: goes before each name. Errors: not_found (a path), invalid_argument (a path without a
// model, or a name that two files have), corruption, unsupported, io: all name the file.
Task<std::shared_ptr<ImportSource>> open_import(os::FileSystem& files,
                                                std::vector<std::string> paths, std::string prefix);

}  // namespace ckpt::cli
