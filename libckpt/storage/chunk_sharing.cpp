#include "storage/chunk_sharing.hpp"

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using format::ShardRecord;

Task<void> check_published(os::FileSystem& files, ChunkSharing::Earlier earlier,
                           std::shared_ptr<const ShardRecord> record) {
  for (std::size_t member = 0; member < earlier.shard->files.size(); ++member) {
    const std::string path = os::join(earlier.directory, record->layout.members[member].file_name);
    CKPT_CO_TRY(const os::FileStatus status, co_await files.status(path));
    if (status == earlier.shard->files[member]) continue;
    co_return fail(Errc::not_found, os::display(path) + " is not the file that was written");
  }
  co_return Status();
}

}  // namespace

bool may_share(const StoredShard& earlier, const ShardRecord& record) {
  return earlier.job == record.job && earlier.run == record.run &&
         earlier.id.rank == record.id.rank && earlier.id.at.timeline == record.id.at.timeline &&
         earlier.id.at < record.id.at && earlier.model == record.model &&
         earlier.chunk_bytes == record.chunk_bytes &&
         earlier.files.size() == record.layout.members.size();
}

std::shared_ptr<ChunkSharing> ChunkSharing::in(const Site& site,
                                               std::shared_ptr<const StoredShard> earlier) {
  if (site.objects() != nullptr) return nullptr;
  if (earlier == nullptr) return std::make_shared<ChunkSharing>(std::nullopt);
  std::string directory = site.at(step_directory_name(earlier->id.at.step));
  return std::make_shared<ChunkSharing>(Earlier{std::move(earlier), std::move(directory)});
}

Task<void> ChunkSharing::begin(os::FileSystem& files, std::shared_ptr<const ShardRecord> record) {
  CKPT_ASSERT(record != nullptr);
  CKPT_ASSERT(record_ == nullptr);
  record_ = std::move(record);
  digests_.resize(record_->chunk_crcs.size());
  if (!earlier_ || !may_share(*earlier_->shard, *record_)) co_return Status();
  Status published = co_await check_published(files, *earlier_, record_);
  if (!published) {
    refuse(std::move(published).error());
    co_return Status();
  }
  base_ = *earlier_;
  round_ = (base_.shard->round + 1) % saves_sharing_max;
  co_return Status();
}

bool ChunkSharing::is_unchanged(std::size_t chunk) const {
  if (!has_base() || refusal_) return false;
  if ((chunk + round_) % saves_sharing_max == 0) return false;  // Written anew in any case.
  const StoredShard& base = *base_.shard;
  return chunk < base.crcs.size() && base.crcs[chunk] == record_->chunk_crcs[chunk] &&
         base.digests[chunk] == digests_[chunk];
}

void ChunkSharing::refuse(Error error) {
  if (!refusal_) refusal_ = std::move(error);
}

Task<bool> ChunkSharing::share(std::size_t chunk, std::vector<FileSegment> segments,
                               std::vector<std::span<const std::byte>> bytes, os::File* file,
                               Compute* compute) {
  CKPT_ASSERT(record_ != nullptr);
  CKPT_ASSERT(chunk < digests_.size());
  std::function<Result<Digest>()> hash = [&bytes] { return digest_of_pieces(bytes); };
  CKPT_CO_TRY(digests_[chunk], co_await compute_on(compute, std::move(hash)));
  // Only whole Chunks of one file: the rest is little, and may end anywhere in a block.
  const FileSegment& segment = segments.front();
  const bool is_whole = segments.size() == 1 && segment.member && file != nullptr &&
                        segment.extent.bytes == record_->chunk_bytes;
  if (!is_whole || !is_unchanged(chunk)) co_return false;
  const os::FileStatus& expected = base_.shard->files[*segment.member];
  if (segment.file_offset + segment.extent.bytes > expected.bytes) co_return false;
  const std::string& name = record_->layout.members[*segment.member].file_name;
  const os::CloneRange range{segment.file_offset, segment.file_offset, segment.extent.bytes};
  os::CloneSource source{os::join(base_.directory, name), expected};
  Status cloned = co_await file->clone_at(range, std::move(source));
  if (cloned) bytes_shared_ += range.bytes;
  if (!cloned) refuse(std::move(cloned).error());
  co_return cloned.has_value();
}

Task<void> ChunkSharing::finish(os::FileSystem& files, std::vector<std::string> paths) {
  CKPT_ASSERT(record_ != nullptr);
  CKPT_ASSERT(paths.size() == record_->layout.members.size());
  CKPT_ASSERT(stored_ == nullptr);
  auto stored = std::make_shared<StoredShard>();
  for (const std::string& path : paths) {
    const auto status = co_await files.status(path);
    if (!status) co_return Status();  // The next save writes everything.
    stored->files.push_back(*status);
  }
  stored->job = record_->job;
  stored->run = record_->run;
  stored->id = record_->id;
  stored->model = record_->model;
  stored->chunk_bytes = record_->chunk_bytes;
  stored->crcs = record_->chunk_crcs;
  stored->digests = std::move(digests_);
  stored->round = round_;
  stored_ = std::move(stored);
  co_return Status();
}

}  // namespace ckpt::storage
