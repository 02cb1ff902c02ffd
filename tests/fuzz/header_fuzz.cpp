// Goal:   no header of a safetensors file makes a reader look outside of the file, or take bytes of
//         one tensor for another's.
// Method: the input is the whole file. What is accepted covers its data once, from end to end.
#include "format/safetensors_image.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes input) {
  if (input.size() < sizeof(std::uint64_t)) return;
  const auto header = format::safetensors_header_bytes(input, input.size());
  if (!header) return;
  promise(*header <= input.size(), "the header lies in the file");
  const auto image = format::parse_safetensors(input.first(*header), input.size());
  if (!image) return;
  promise(image->header_bytes == *header, "the header is as long as its first bytes say");
  std::uint64_t end = image->header_bytes;
  for (const format::ImageTensor& tensor : image->tensors) {
    const auto bytes = format::tensor_bytes(tensor.dtype, tensor.shape);
    promise(bytes.has_value() && *bytes == tensor.extent.bytes, "a shape fits its bytes");
    promise(tensor.extent.offset == end, "a tensor begins where the one before it ends");
    promise(tensor.extent.bytes <= input.size() - end, "a tensor lies in the file");
    end += tensor.extent.bytes;
  }
  promise(end == input.size(), "there is nothing behind the tensors");
}

}  // namespace ckpt::fuzz
