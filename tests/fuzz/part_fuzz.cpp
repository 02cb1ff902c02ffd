// Goal:   no rank's part is misread: its front, its blocks, its tensors.
// Method: the fuzzer cannot guess digests, so those of the blocks are replaced by what they have.
#include <algorithm>

#include "format/part_front.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

namespace {

void read_block(const format::PartFront& front, format::PartBlock block, Bytes part) {
  if (block.offset > part.size() || block.bytes > part.size() - block.offset) return;
  const Bytes bytes = part.subspan(block.offset, block.bytes);
  block.digest = digest_of(bytes);
  const auto entries = format::decode_part_block(front, block, bytes);
  if (!entries) return;
  promise(entries->size() == block.tensors, "a block has the tensors that its front counts");
  for (const format::PartEntry& entry : *entries) {
    const format::TensorPlace& tensor = entry.tensor;
    promise(entry.place < front.tensors, "a tensor has a place in the layout");
    promise(tensor.extent.bytes <= front.record.bytes &&
                tensor.extent.offset <= front.record.bytes - tensor.extent.bytes,
            "a tensor lies inside of the shard");
  }
}

}  // namespace

void fuzz_one(Bytes input) {
  if (input.size() < format::part_head_bytes) return;
  const auto front_bytes = format::part_front_bytes(input.first(format::part_head_bytes));
  if (!front_bytes || *front_bytes > input.size()) return;
  const std::vector<std::byte> front_input = with_crc(input.first(*front_bytes));
  const auto front = format::decode_part_front(front_input);
  if (!front) return;
  promise(std::ranges::equal(format::encode(*front), front_input), "a front is kept to the byte");
  for (const format::PartBlock& block : front->blocks) read_block(*front, block, input);
}

}  // namespace ckpt::fuzz
