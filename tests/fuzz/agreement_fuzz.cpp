// Goal:   no report, decree or Start of a peer is misread.
// Method: each input is tried as each of them. An accepted one can be encoded, and is then read
//         as the same.
#include <algorithm>

#include "format/agreement.hpp"
#include "format/start.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

namespace {

template <class Decode>
void keep(Decode decode, Bytes input, const char* what) {
  const auto value = decode(input);
  if (!value) return;
  const auto again = format::encode(*value);
  const auto back = decode(Bytes(again));
  promise(back && *back == *value, what);
}

}  // namespace

void fuzz_one(Bytes bytes) {
  const std::vector<std::byte> input = with_crc(bytes);
  keep(format::decode_node_report, input, "a report is kept");
  keep(format::decode_decree, input, "a decree is kept");
  keep(format::decode_start, input, "a Start is kept");
}

}  // namespace ckpt::fuzz
