// Goal:   no zip file makes a reader look outside of the file, or take two entries for one.
// Method: the input is the file: its end, its directory, and each local header that this names.
#include <algorithm>

#include "format/zip_directory.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes input) {
  const Bytes tail = input.last(std::min(input.size(), format::zip_tail_bytes));
  const auto end = format::find_zip_end(tail, input.size());
  if (!end) return;
  const format::Extent directory = end->directory;
  promise(directory.offset <= input.size() && directory.bytes <= input.size() - directory.offset,
          "the directory lies in the file");
  const auto entries =
      format::parse_zip_directory(input.subspan(directory.offset, directory.bytes), *end);
  if (!entries) return;
  promise(entries->size() == end->entries, "the directory has the entries that it counts");
  for (std::size_t index = 0; index < entries->size(); ++index) {
    const format::ZipEntry& entry = (*entries)[index];
    const bool is_last = index + 1 == entries->size();
    const std::uint64_t behind = is_last ? directory.offset : (*entries)[index + 1].header;
    promise(entry.header <= behind && behind <= directory.offset, "entries follow one another");
    if (entry.header + format::zip_local_header_bytes > input.size()) continue;
    const Bytes header = input.subspan(entry.header, format::zip_local_header_bytes);
    const auto data = format::zip_data(header, entry, behind);
    if (!data) continue;
    promise(data->bytes == entry.bytes, "an entry has its size");
    promise(data->offset >= entry.header && data->end() <= behind, "an entry's bytes are its own");
  }
}

}  // namespace ckpt::fuzz
