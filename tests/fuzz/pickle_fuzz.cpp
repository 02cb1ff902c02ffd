// Goal:   no pickle of a torch archive names bytes outside of its storages, and none runs anything.
// Method: the input is the pickle itself. Its machine must end for all of them.
#include "format/torch_pickle.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes input) {
  const auto read = format::read_torch_pickle(input);
  if (!read) return;
  promise(read->tensors.size() <= format::tensors_max, "tensors are counted");
  for (const format::PickledTensor& tensor : read->tensors) {
    const auto bytes = format::tensor_bytes(tensor.dtype, tensor.shape);
    promise(bytes.has_value(), "a tensor's size can be counted");
    promise(tensor.offset <= tensor.storage_bytes && *bytes <= tensor.storage_bytes - tensor.offset,
            "a tensor lies inside of its storage");
    promise(!tensor.name.empty() || read->tensors.size() == 1, "a tensor has a name");
  }
}

}  // namespace ckpt::fuzz
