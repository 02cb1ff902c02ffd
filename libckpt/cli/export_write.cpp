// 1. Nothing is in the way, every element of every tensor is there, and the disk has room.
// 2. Each file is written under a hidden name beside its place, and synced.
// 3. The files that a program would open first are removed: the index, and a single file.
// 4. The files are renamed to their places, the index last, and the directory is synced.
//
// In a bucket the parts of each object are uploaded in step 2, and in step 4 the uploads are
// completed.
//
// A death in between leaves hidden files, or no index. The next export to that place removes such
// files, if no other one is under way in the directory, nor has written them within the last hour.
// It leaves no file that is not whole, and no index of other files than lie there.
#include "cli/export_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "cli/left_partials.hpp"
#include "cli/torch_file.hpp"
#include "format/dcp_metadata.hpp"
#include "os/path.hpp"

namespace ckpt::cli {

namespace {

bool is_dcp_file(std::string_view name) {
  return name == format::dcp_metadata_name || name.ends_with(".distcp");
}

// Lives in the frame of write_export.
struct Export {
  os::FileSystem& files;
  gather::ShardSource& source;
  ExportPlan plan;
  ExportOrder order;
  std::vector<std::string> in_the_way;  // Names in the directory.
  std::vector<std::byte> buffer;
  std::vector<std::byte> other;
  bool has_made_directory = false;
  std::vector<format::DcpTensor> described;        // For an export to DCP.
  std::vector<std::unique_ptr<os::File>> uploads;  // In a bucket: by file, not complete yet.
  std::vector<std::byte> index_content;

  bool is_in_bucket() const { return files.objects(order.directory) != nullptr; }
  void count(std::uint64_t bytes) const {
    if (order.written) order.written(bytes);
  }

  std::string at(std::string_view name) const { return os::beneath(order.directory, name); }
  std::string aside(std::string_view name) const { return at(partial_name(name, order.attempt)); }
  // The file that is read first, and says what is in the others. Empty: there is none.
  std::string index() const {
    if (order.kind == ExportKind::dcp) return format::dcp_metadata_name;
    return order.is_whole_directory && plan.files.size() > 1 ? index_name : "";
  }
  bool is_of_directory(std::string_view name) const {
    return order.kind == ExportKind::dcp ? is_dcp_file(name) : is_model_file(name);
  }
  // Nothing is found without it.
  bool is_opened_first(std::string_view name) const {
    return order.kind == ExportKind::dcp ? name == format::dcp_metadata_name
                                         : name == index_name || name == single_name;
  }
};

// The sources of a file's tensors, in the order of the file.
std::vector<gather::TensorToRead> sources_of(const ExportFile& file) {
  std::vector<gather::TensorToRead> sources;
  sources.reserve(file.tensors.size());
  for (const ExportTensor& tensor : file.tensors) sources.push_back(tensor.source);
  return sources;
}

Task<void> find_what_is_in_the_way(Export& work) {
  auto listed = co_await work.files.list(work.at("."));
  const bool may_be_missing = work.order.makes_directory || work.is_in_bucket();
  if (!listed && listed.error().code() == Errc::not_found && may_be_missing) co_return Status();
  const bool is_no_directory = !listed && (listed.error().code() == Errc::not_found ||
                                           listed.error().cause() == std::errc::not_a_directory);
  if (is_no_directory)
    co_return fail(Errc::invalid_argument,
                   fmt::format("write to {}: {}", work.order.directory, listed.error().message()));
  if (!listed) co_return fail(Error(listed.error()).context("write to " + work.order.directory));
  for (const os::DirectoryEntry& entry : *listed) {
    const bool is_of_whole = work.order.is_whole_directory && work.is_of_directory(entry.name);
    const bool is_ours =
        std::ranges::find(work.plan.files, entry.name, &ExportFile::name) != work.plan.files.end();
    if (!is_of_whole && !is_ours) continue;
    const std::string path = shown_path(work.at(entry.name));
    if (entry.kind == os::EntryKind::directory)
      co_return fail(Errc::invalid_argument, fmt::format("{} is a directory", path));
    if (!work.order.replaces)
      co_return fail(
          Errc::invalid_argument,
          fmt::format("{} exists: choose another place, or replace it with --force", path));
    work.in_the_way.push_back(entry.name);
  }
  co_return Status();
}

// Removes the files that a killed export to the same place left behind.
Task<void> remove_left(Export& work) {
  IsOurs is_ours = [&work](std::string_view name) {
    return std::ranges::find(work.plan.files, name, &ExportFile::name) != work.plan.files.end() ||
           (work.order.is_whole_directory && work.is_of_directory(name));
  };
  Status removed = co_await remove_left_partials(work.files, work.order.directory,
                                                 std::move(is_ours), work.order.now);
  co_return removed;
}

// A tensor that other ranks have, too, is not missing: it is whole there.
Task<void> check_complete(Export& work) {
  std::vector<gather::TensorToRead> all;
  for (const ExportFile& file : work.plan.files)
    for (gather::TensorToRead& source : sources_of(file)) all.push_back(std::move(source));
  auto checked = co_await gather::check_tensors(work.source, all);
  co_return checked;
}

Task<void> make_room(Export& work) {
  if (work.is_in_bucket()) co_return Status();
  if (work.order.makes_directory) {
    const auto there = co_await work.files.status(work.at("."));
    if (!there) {
      CKPT_CO_CHECK(co_await work.files.make_directory(work.order.directory));
      work.has_made_directory = true;
      std::string parent = std::filesystem::path(work.order.directory).parent_path();
      if (parent.empty()) parent = ".";
      CKPT_CO_CHECK(co_await work.files.sync_directory(std::move(parent)));
    }
  }
  if (work.order.is_alone && work.order.is_alone()) CKPT_CO_CHECK(co_await remove_left(work));
  if (work.order.begin_writing) work.order.begin_writing();
  std::uint64_t needed = 0;
  for (const ExportFile& file : work.plan.files) needed += file.bytes;
  const auto space = co_await work.files.space(work.at("."));
  if (space && space->bytes_free < needed)
    co_return fail(Errc::exhausted,
                   fmt::format("write {} to {}: it has {} free", arena::human_bytes(needed),
                               work.order.directory, arena::human_bytes(space->bytes_free)));
  co_return Status();
}

// A part of a batch: the slices that another rank has as well, and where they lie in the buffer.
struct Shared {
  gather::Batch batch;
  std::vector<std::uint64_t> places;
};

std::map<std::uint32_t, Shared> shared_in(const ExportFile& file, const gather::Batch& batch) {
  std::map<std::uint32_t, Shared> by_rank;
  std::uint64_t place = 0;
  for (const gather::Slice& slice : batch) {
    for (const std::uint32_t rank : file.tensors[slice.tensor].other_ranks) {
      by_rank[rank].batch.push_back(slice);
      by_rank[rank].places.push_back(place);
    }
    place += slice.bytes;
  }
  return by_rank;
}

// Compares what lies in the buffer with what other ranks saved whole under the same names.
Task<void> compare_others(Export& work, const ExportFile& file, const gather::Batch& batch) {
  const auto by_rank = shared_in(file, batch);
  for (const auto& [rank, shared] : by_rank) {
    std::vector<gather::TensorToRead> sources = sources_of(file);
    for (gather::TensorToRead& source : sources) source.rank = rank;
    work.other.resize(std::max<std::uint64_t>(work.other.size(), gather::bytes_of(shared.batch)));
    const std::span<std::byte> bytes = std::span(work.other).first(gather::bytes_of(shared.batch));
    const storage::TransferHooks hooks;
    CKPT_CO_CHECK(co_await gather::read_batch(work.source, sources, shared.batch, bytes, hooks));
    std::uint64_t at = 0;
    for (std::size_t index = 0; index < shared.batch.size(); ++index) {
      const gather::Slice& slice = shared.batch[index];
      const bool is_same = std::memcmp(bytes.data() + at, work.buffer.data() + shared.places[index],
                                       slice.bytes) == 0;
      if (!is_same)
        co_return fail(
            Errc::unsupported,
            fmt::format("tensor \"{}\": ranks {} and {} have saved it whole, and not "
                        "with the same bytes; take that of one with --rank, or leave "
                        "it out with --names",
                        sources[slice.tensor].name, file.tensors[slice.tensor].source.rank, rank));
      at += slice.bytes;
    }
  }
  co_return Status();
}

std::vector<std::pair<std::string, std::string>> metadata_of(const ExportPlan& plan,
                                                             const ExportFile& file) {
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};
  std::set<std::string_view> names;
  for (const ExportTensor& tensor : file.tensors) names.insert(tensor.plain.name);
  // As safetensors.torch.save_model() has it.
  for (const Tied& tied : plan.tied)
    if (names.contains(tied.kept) && tied.other != "format")
      metadata.emplace_back(tied.other, tied.kept);
  return metadata;
}

Task<void> nothing_more() {
  co_return Status();
}

// Passes the verified bytes of all tensors to `take`, batch by batch.
using TakeBatch =
    std::function<Task<void>(const gather::Batch& batch, std::span<const std::byte> bytes)>;
Task<void> read_tensors(Export& work, const ExportFile& file, TakeBatch take) {
  const std::vector<gather::TensorToRead> sources = sources_of(file);
  const std::vector<gather::Batch> batches = gather::make_batches(sources, work.order.buffer_bytes);
  for (const gather::Batch& batch : batches) {
    if (work.order.is_cancelled && work.order.is_cancelled())
      co_return fail(Errc::cancelled, "stopped by a signal");
    const std::uint64_t size = gather::bytes_of(batch);
    work.buffer.resize(std::max<std::uint64_t>(work.buffer.size(), size));
    const std::span<std::byte> bytes = std::span(work.buffer).first(size);
    const storage::TransferHooks hooks;
    CKPT_CO_CHECK(co_await gather::read_batch(work.source, sources, batch, bytes, hooks));
    CKPT_CO_CHECK(co_await compare_others(work, file, batch));
    CKPT_CO_CHECK(co_await take(batch, bytes));
  }
  co_return Status();
}

// In a bucket its size is needed before its bytes.
Task<void> announce(Export& work, os::File& target, std::uint64_t bytes) {
  if (!work.is_in_bucket()) co_return Status();
  Status allocated = co_await target.allocate(bytes);
  co_return allocated;
}

Task<void> write_safetensors(Export& work, const ExportFile& file, os::File& target) {
  std::vector<format::PlainTensor> plain;
  for (const ExportTensor& tensor : file.tensors) plain.push_back(tensor.plain);
  CKPT_CO_TRY(const auto header, format::plain_header(plain, metadata_of(work.plan, file)));
  CKPT_CO_CHECK(co_await announce(work, target, header.size() + file.bytes));
  CKPT_CO_CHECK(co_await target.write_at(0, header));
  std::uint64_t at = header.size();
  TakeBatch take = [&](const gather::Batch&, std::span<const std::byte> bytes) {
    const std::uint64_t begin = std::exchange(at, at + bytes.size());
    work.count(bytes.size());
    return target.write_at(begin, bytes);
  };
  CKPT_CO_CHECK(co_await read_tensors(work, file, std::move(take)));
  CKPT_ASSERT(at == header.size() + file.bytes);
  co_return Status();
}

// In a bucket all is read twice: what describes a tensor lies before it, and has its checksum.
Task<void> write_torch(Export& work, const ExportFile& file, os::File& target) {
  const bool is_dcp = work.order.kind == ExportKind::dcp;
  auto made = is_dcp ? TorchFile::make_of_each(file) : TorchFile::make(file, work.plan.tied);
  if (!made) co_return fail(std::move(made).error());
  TorchFile& torch = *made;
  CKPT_CO_CHECK(co_await announce(work, target, torch.bytes()));
  if (work.is_in_bucket()) {
    TakeBatch hash = [&](const gather::Batch& batch, std::span<const std::byte> bytes) {
      torch.hash(batch, bytes);
      return nothing_more();
    };
    CKPT_CO_CHECK(co_await read_tensors(work, file, std::move(hash)));
    CKPT_CO_CHECK(co_await torch.put_rest(target));
  }
  const bool is_hashed = work.is_in_bucket();
  TakeBatch take = [&](const gather::Batch& batch, std::span<const std::byte> bytes) {
    if (!is_hashed) torch.hash(batch, bytes);
    work.count(bytes.size());
    return torch.put(target, batch, bytes);
  };
  CKPT_CO_CHECK(co_await read_tensors(work, file, std::move(take)));
  if (!is_hashed) CKPT_CO_CHECK(co_await torch.put_rest(target));
  for (std::size_t index = 0; is_dcp && index < file.tensors.size(); ++index)
    work.described.push_back(torch.described(file, index));
  co_return Status();
}

Task<void> write_aside(Export& work, const ExportFile& file) {
  const std::string path = work.is_in_bucket() ? work.at(file.name) : work.aside(file.name);
  CKPT_CO_TRY(auto target, co_await work.files.create(path, os::Caching::buffered));
  const bool is_torch = work.order.kind != ExportKind::safetensors;
  Task<void> writing =
      is_torch ? write_torch(work, file, *target) : write_safetensors(work, file, *target);
  CKPT_CO_CHECK(co_await std::move(writing));
  if (work.is_in_bucket()) {
    work.uploads.push_back(std::move(target));
    co_return Status();
  }
  CKPT_CO_CHECK(co_await target->sync_data());
  auto closed = co_await target->close();
  co_return closed;
}

std::vector<std::byte> index_of(const Export& work) {
  if (work.order.kind == ExportKind::dcp) {
    std::vector<format::DcpTensor> all = work.described;
    for (const Tied& pair : work.plan.tied) {
      const auto kept = std::ranges::find(work.described, pair.kept, &format::DcpTensor::name);
      if (kept == work.described.end()) continue;
      all.push_back(*kept);
      all.back().name = pair.other;
    }
    return format::write_dcp_metadata(all);
  }
  const std::string text = index_json(work.plan);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Task<void> write_all(Export& work) {
  CKPT_CO_CHECK(co_await find_what_is_in_the_way(work));
  CKPT_CO_CHECK(co_await check_complete(work));
  CKPT_CO_CHECK(co_await make_room(work));
  // Step 2.
  for (const ExportFile& file : work.plan.files) CKPT_CO_CHECK(co_await write_aside(work, file));
  const std::string index = work.index();
  if (index.empty()) co_return Status();
  work.index_content = index_of(work);
  if (work.is_in_bucket()) co_return Status();
  Status written = co_await work.files.write_small(work.aside(index), work.index_content);
  co_return written;
}

Task<void> remove_aside(Export& work) {
  if (work.is_in_bucket()) co_return Status();  // An upload that is not completed is aborted.
  for (const ExportFile& file : work.plan.files)
    (void)co_await work.files.remove_file(work.aside(file.name));
  if (const std::string index = work.index(); !index.empty())
    (void)co_await work.files.remove_file(work.aside(index));
  if (work.has_made_directory) (void)co_await work.files.remove_directory(work.order.directory);
  co_return Status();
}

Task<void> place_in_bucket(Export& work, std::string name) {
  const auto file = std::ranges::find(work.plan.files, name, &ExportFile::name);
  if (file == work.plan.files.end()) {
    const os::PutCondition replace(os::PutMode::replace);
    Status put = co_await work.files.objects(work.order.directory)
                     ->put_small(work.at(name), work.index_content, replace);
    co_return put;
  }
  const auto number = static_cast<std::size_t>(file - work.plan.files.begin());
  Status completed = co_await work.uploads.at(number)->sync_data();
  co_return completed;
}

Task<void> place(Export& work, std::string name) {
  if (work.is_in_bucket()) {
    Status placed = co_await place_in_bucket(work, std::move(name));
    co_return placed;
  }
  const auto mode = work.order.replaces ? os::RenameMode::replace : os::RenameMode::no_replace;
  auto renamed = co_await work.files.rename(work.aside(name), work.at(name), mode);
  co_return renamed;
}

Task<void> place_all(Export& work) {
  // Step 3. A single file of other tensors is replaced at once.
  const auto is_new = [&](const std::string& name) {
    return std::ranges::find(work.plan.files, name, &ExportFile::name) != work.plan.files.end();
  };
  bool has_removed = false;
  for (const std::string& name : work.in_the_way) {
    if (!work.is_opened_first(name) || is_new(name)) continue;
    CKPT_CO_CHECK(co_await work.files.remove_file(work.at(name)));
    has_removed = true;
  }
  if (has_removed) CKPT_CO_CHECK(co_await work.files.sync_directory(work.at(".")));
  for (const std::string& name : work.in_the_way) {
    const bool is_gone = work.is_opened_first(name) || is_new(name);
    if (!is_gone) CKPT_CO_CHECK(co_await work.files.remove_file(work.at(name)));
  }
  // Step 4.
  for (const ExportFile& file : work.plan.files) CKPT_CO_CHECK(co_await place(work, file.name));
  CKPT_CO_CHECK(co_await work.files.sync_directory(work.at(".")));
  if (std::string index = work.index(); !index.empty()) {
    CKPT_CO_CHECK(co_await place(work, std::move(index)));
    CKPT_CO_CHECK(co_await work.files.sync_directory(work.at(".")));
  }
  co_return Status();
}

}  // namespace

Task<std::vector<std::string>> write_export(os::FileSystem& files, gather::ShardSource& source,
                                            ExportPlan plan, ExportOrder order) {
  Export work{files, source, std::move(plan), std::move(order)};
  auto done = co_await write_all(work);
  if (done) done = co_await place_all(work);
  if (!done) {
    (void)co_await remove_aside(work);
    co_return fail(std::move(done).error());
  }
  std::vector<std::string> paths;
  for (const ExportFile& file : work.plan.files) paths.push_back(os::display(work.at(file.name)));
  if (const std::string index = work.index(); !index.empty())
    paths.push_back(os::display(work.at(index)));
  co_return paths;
}

}  // namespace ckpt::cli
