// Goal:   no record of a shard is misread, from a peer or from a trainer's daemon.
// Method: what is accepted is valid, and is encoded to the bytes that it came from.
#include <algorithm>

#include "format/shard_record.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes bytes) {
  const std::vector<std::byte> input = with_crc(bytes);
  const auto record = format::decode_shard_record(input);
  if (!record) return;
  promise(format::validate(*record).has_value(), "a record that was read is valid");
  promise(std::ranges::equal(format::encode(*record), input), "a record is kept to the byte");
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
    const auto chunk = record->chunk(index);
    promise(chunk.bytes > 0 && chunk.offset + chunk.bytes <= record->bytes,
            "a Chunk lies inside of the shard");
  }
}

}  // namespace ckpt::fuzz
