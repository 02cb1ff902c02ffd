#include "cli/import_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/units.hpp"
#include "format/safetensors_image.hpp"
#include "format/torch_pickle.hpp"
#include "format/zip_directory.hpp"
#include "os/path.hpp"

namespace ckpt::cli {

namespace {

constexpr std::uint64_t index_bytes_max = 64u << 20;
constexpr std::uint64_t verify_bytes = 4 * MiB;
constexpr std::size_t head_bytes = 8;
// In this order, as Hugging Face looks for them.
constexpr std::array model_names = {"model.safetensors", "model.safetensors.index.json",
                                    "pytorch_model.bin", "pytorch_model.bin.index.json"};

struct Model {
  os::FileSystem& files;
  std::string prefix;
  ImportSource source;
  std::set<std::string> names;
};

Unexpected no_model(const std::string& path) {
  return fail(Errc::invalid_argument,
              fmt::format("import {}: it has neither of {}: name the file itself", path,
                          fmt::join(model_names, ", ")));
}

// The file behind links, as they lie in a cache of models. A directory: the model in it.
Result<std::string> file_on_disk(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return fail(Errc::not_found, fmt::format("import {}: {}", path, error.message()));
  if (!std::filesystem::is_directory(real)) return real.string();
  for (const char* name : model_names) {
    const std::filesystem::path found = std::filesystem::canonical(real / name, error);
    if (!error) return found.string();
  }
  return no_model(path);
}

Task<std::string> model_file(os::FileSystem& files, std::string path) {
  if (path.empty()) co_return fail(Errc::invalid_argument, "import \"\": name a file");
  if (files.objects(path) == nullptr) co_return file_on_disk(path);
  CKPT_CO_TRY(const os::FileStatus there, co_await files.status(path));
  if (there.kind == os::EntryKind::file) co_return path;
  for (const char* name : model_names) {
    std::string found = os::join(path, name);
    const auto status = co_await files.status(found);
    if (status) co_return found;
    if (status.error().code() != Errc::not_found) co_return fail(Error(status.error()));
  }
  co_return no_model(path);
}

Status add_tensor(Model& model, ImportTensor tensor) {
  tensor.spec.name = model.prefix + tensor.spec.name;
  if (!tensor.spec.alias_of.empty()) tensor.spec.alias_of = model.prefix + tensor.spec.alias_of;
  if (!model.names.insert(tensor.spec.name).second)
    return fail(Errc::invalid_argument,
                fmt::format("tensor \"{}\" is there twice", tensor.spec.name));
  model.source.tensors.push_back(std::move(tensor));
  return {};
}

Task<void> add_safetensors(Model& model, std::size_t file, std::uint64_t file_bytes) {
  std::vector<std::byte> front(head_bytes);
  CKPT_CO_CHECK(co_await model.source.files[file]->read_at(0, front));
  CKPT_CO_TRY(const std::uint64_t header, format::safetensors_header_bytes(front, file_bytes));
  front.resize(header);
  CKPT_CO_CHECK(co_await model.source.files[file]->read_at(0, front));
  CKPT_CO_TRY(const format::SafetensorsImage image, format::parse_safetensors(front, file_bytes));
  for (const format::ImageTensor& each : image.tensors) {
    ImportTensor tensor;
    tensor.spec.name = each.name;
    tensor.spec.dtype = each.dtype;
    tensor.spec.shape = each.shape;
    tensor.file = file;
    tensor.bytes = each.extent;
    CKPT_CO_CHECK(add_tensor(model, std::move(tensor)));
  }
  co_return Status();
}

Task<std::vector<std::byte>> read_extent(os::File& file, format::Extent extent) {
  std::vector<std::byte> bytes(extent.bytes);
  CKPT_CO_CHECK(co_await file.read_at(extent.offset, bytes));
  co_return bytes;
}

// Where each entry's bytes lie, by its name without the archive's folder.
struct Archive {
  std::map<std::string, std::pair<format::Extent, Crc32>> entries;
};

Task<Archive> read_archive(os::File& file, std::uint64_t file_bytes) {
  const std::uint64_t tail = std::min<std::uint64_t>(file_bytes, format::zip_tail_bytes);
  const format::Extent last{file_bytes - tail, tail};
  CKPT_CO_TRY(const auto end_bytes, co_await read_extent(file, last));
  CKPT_CO_TRY(const format::ZipEnd end, format::find_zip_end(end_bytes, file_bytes));
  CKPT_CO_TRY(const auto directory, co_await read_extent(file, end.directory));
  CKPT_CO_TRY(const auto entries, format::parse_zip_directory(directory, end));
  Archive archive;
  for (std::size_t index = 0; index < entries.size(); ++index) {
    const format::ZipEntry& entry = entries[index];
    const std::uint64_t behind =
        index + 1 < entries.size() ? entries[index + 1].header : end.directory.offset;
    const format::Extent header{entry.header, format::zip_local_header_bytes};
    CKPT_CO_TRY(const auto local, co_await read_extent(file, header));
    CKPT_CO_TRY(const format::Extent data, format::zip_data(local, entry, behind));
    const std::string name = entry.name.substr(std::min(entry.name.find('/'), entry.name.size()));
    if (!archive.entries.try_emplace(name, data, entry.crc).second)
      co_return fail(Errc::corruption, fmt::format("two entries \"{}\"", name));
  }
  co_return archive;
}

Task<void> check_bytes(os::File& file, std::string name, format::Extent data, Crc32 expected) {
  Crc32 crc = 0;
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0; done < data.bytes; done += bytes.size()) {
    bytes.resize(std::min(verify_bytes, data.bytes - done));
    CKPT_CO_CHECK(co_await file.read_at(data.offset + done, bytes));
    crc = crc32(bytes, crc);
  }
  if (crc == expected) co_return Status();
  co_return fail(Errc::corruption,
                 fmt::format("entry \"{}\" does not match its checksum: it is damaged, or was "
                             "saved without checksums",
                             name));
}

// Tensors over the same bytes are tied, as torch.load would have them.
Task<void> add_torch(Model& model, std::size_t index, std::uint64_t file_bytes) {
  os::File& file = *model.source.files[index];
  CKPT_CO_TRY(const Archive archive, co_await read_archive(file, file_bytes));
  const auto pickle = archive.entries.find("/data.pkl");
  if (pickle == archive.entries.end())
    co_return fail(Errc::corruption, "it is a zip file without the data.pkl of torch.save");
  if (pickle->second.first.bytes > format::torch_pickle_bytes_max)
    co_return fail(Errc::unsupported, "its pickle is too large");
  if (const auto order = archive.entries.find("/byteorder"); order != archive.entries.end()) {
    CKPT_CO_TRY(const auto text, co_await read_extent(file, order->second.first));
    if (text.size() != 6 || std::memcmp(text.data(), "little", 6) != 0)
      co_return fail(Errc::unsupported, "its numbers are not little-endian");
  }
  CKPT_CO_CHECK(
      co_await check_bytes(file, pickle->first, pickle->second.first, pickle->second.second));
  CKPT_CO_TRY(const auto bytes, co_await read_extent(file, pickle->second.first));
  CKPT_CO_TRY(auto pickled, format::read_torch_pickle(bytes));
  model.source.left_out += pickled.left_out;
  using Location = std::tuple<std::string, std::uint64_t, DType, std::vector<std::int64_t>>;
  std::map<Location, std::string> known;
  std::set<std::string> checked;
  for (format::PickledTensor& each : pickled.tensors) {
    const auto entry = archive.entries.find("/data/" + each.storage);
    if (entry == archive.entries.end() || entry->second.first.bytes != each.storage_bytes)
      co_return fail(Errc::corruption,
                     fmt::format("tensor \"{}\": its storage data/{} is missing, or has another "
                                 "size than the pickle says",
                                 each.name, each.storage));
    const auto& [data, crc] = entry->second;
    if (checked.insert(each.storage).second)
      CKPT_CO_CHECK(co_await check_bytes(file, entry->first, data, crc));
    ImportTensor tensor;
    tensor.spec.name = each.name;
    tensor.spec.dtype = each.dtype;
    tensor.spec.shape = each.shape;
    tensor.file = index;
    tensor.bytes = {data.offset + each.offset,
                    format::tensor_bytes(each.dtype, each.shape).value()};
    const auto [place, is_new] =
        known.try_emplace(Location{each.storage, each.offset, each.dtype, each.shape}, each.name);
    if (!is_new && tensor.bytes.bytes > 0) tensor.spec.alias_of = place->second;
    CKPT_CO_CHECK(add_tensor(model, std::move(tensor)));
  }
  co_return Status();
}

bool is_index(const std::string& path) {
  return path.ends_with(".json");
}

// A file of tensors, by its first bytes.
Task<void> add_file(Model& model, std::string path) {
  CKPT_CO_TRY(const os::FileStatus status, co_await model.files.status(path));
  if (status.kind != os::EntryKind::file)
    co_return fail(Errc::invalid_argument, "it is no regular file");
  CKPT_CO_TRY(auto file, co_await model.files.open_read(path, os::Caching::buffered));
  const std::size_t index = model.source.files.size();
  model.source.paths.push_back(path);
  model.source.files.push_back(std::move(file));
  if (status.bytes < head_bytes) co_return fail(Errc::corruption, "it is too short for a model");
  std::vector<std::byte> head(head_bytes);
  CKPT_CO_CHECK(co_await model.source.files[index]->read_at(0, head));
  const bool is_zip = std::memcmp(head.data(), "PK\x03\x04", 4) == 0;
  const bool is_old = head[0] == std::byte{0x80};
  if (is_old && head[1] <= std::byte{5} && head[7] != std::byte{0})
    co_return fail(Errc::unsupported,
                   "it is a bare pickle, which cannot be read without running it: save it with "
                   "torch.save of torch 1.6 or later");
  if (is_zip) {
    Status added = co_await add_torch(model, index, status.bytes);
    co_return added;
  }
  Status added = co_await add_safetensors(model, index, status.bytes);
  co_return added;
}

struct Index {
  std::map<std::string, std::string> file_of;  // By the tensor's name.
  std::set<std::string> files;
};

Result<Index> parse_index(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (json.is_discarded() || !json.is_object() || map == json.end() || !map->is_object())
    return fail(Errc::corruption, "it is no index of a model: it has no weight_map");
  Index index;
  for (const auto& [name, file] : map->items()) {
    const std::string plain = file.is_string() ? file.get<std::string>() : "";
    if (plain.empty() || plain == "." || plain == ".." ||
        plain.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      return fail(Errc::corruption,
                  fmt::format("its entry \"{}\" does not name a file beside it", name));
    index.file_of[name] = plain;
    index.files.insert(plain);
  }
  if (index.files.empty()) return fail(Errc::corruption, "it names no tensor");
  return index;
}

// All that the index names, and nothing else.
Task<void> add_index(Model& model, std::string path, std::string directory) {
  CKPT_CO_TRY(const auto bytes, co_await model.files.read_small(path, index_bytes_max));
  CKPT_CO_TRY(const Index index, parse_index(std::string_view(
                                     reinterpret_cast<const char*>(bytes.data()), bytes.size())));
  for (const std::string& name : index.files) {
    const std::size_t before = model.source.tensors.size();
    CKPT_CO_TRY(const std::string file,
                co_await model_file(model.files, os::join(directory, name)));
    Status added = co_await add_file(model, file);
    if (!added) co_return fail(std::move(added).error().context(name));
    for (std::size_t at = before; at < model.source.tensors.size(); ++at) {
      const std::string tensor = model.source.tensors[at].spec.name.substr(model.prefix.size());
      const auto known = index.file_of.find(tensor);
      if (known == index.file_of.end() || known->second != name)
        co_return fail(
            Errc::corruption,
            fmt::format("{} has tensor \"{}\", which the index does not say", name, tensor));
    }
  }
  for (const auto& [tensor, name] : index.file_of) {
    if (!model.names.contains(model.prefix + tensor))
      co_return fail(Errc::corruption, fmt::format("{} lacks tensor \"{}\"", name, tensor));
  }
  co_return Status();
}

}  // namespace

Task<std::shared_ptr<ImportSource>> open_import(os::FileSystem& files,
                                                std::vector<std::string> paths,
                                                std::string prefix) {
  Model model{files, std::move(prefix), {}, {}};
  for (const std::string& given : paths) {
    CKPT_CO_TRY(const std::string path, co_await model_file(files, given));
    // Beside the index as it was named: behind a link lie other names.
    std::string directory = std::filesystem::path(given).parent_path().string();
    const bool is_in_bucket = files.objects(given) != nullptr;
    if (is_in_bucket ? path != given : std::filesystem::is_directory(given)) directory = given;
    if (directory.empty()) directory = ".";
    Status added;
    if (is_index(path) || is_index(given)) {
      added = co_await add_index(model, path, directory);
    } else {
      added = co_await add_file(model, path);
    }
    if (!added) co_return fail(std::move(added).error().context("import " + given));
  }
  if (model.source.tensors.empty())
    co_return fail(Errc::invalid_argument,
                   fmt::format("import {}: there are no tensors", fmt::join(paths, ", ")));
  co_return std::make_shared<ImportSource>(std::move(model.source));
}

}  // namespace ckpt::cli
