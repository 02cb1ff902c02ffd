#include "storage/metrics_reader.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

Task<format::Metrics> read_metrics(os::FileSystem& files, std::string directory,
                                   format::PartFront front, std::uint32_t turn) {
  const format::ShardRecord& record = front.record;
  const auto found = std::ranges::find(record.blob_names, format::metrics_blob_name);
  if (found == record.blob_names.end()) co_return format::Metrics();
  const format::Extent blob =
      record.blobs[static_cast<std::size_t>(found - record.blob_names.begin())];
  if (blob.bytes == 0) co_return format::Metrics();
  if (blob.bytes > format::metrics_bytes_max)
    co_return fail(Errc::corruption, "read metrics: there are too many");
  const auto member = format::blob_member(record.layout);
  CKPT_ASSERT(member.has_value());  // The front was validated.
  const std::string path = os::join(directory, turn_name(front.files[*member].name, turn));
  CKPT_CO_TRY(const auto file, co_await files.open_read(path, os::Caching::buffered));
  std::vector<std::byte> bytes(blob.bytes);
  const std::uint64_t offset = blob.offset - record.layout.members[*member].extent.offset;
  CKPT_CO_CHECK(co_await file->read_at(offset, bytes));
  CKPT_CO_CHECK(co_await file->close());
  auto metrics = format::parse_metrics(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  co_return metrics;
}

}  // namespace ckpt::storage
