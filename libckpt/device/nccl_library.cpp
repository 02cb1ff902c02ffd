#include "device/nccl_library.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "os/dynamic_library.hpp"

namespace ckpt::device {

namespace {

constexpr int nccl_version_min = 21400;  // The first version with communicators that do not block.
constexpr const char* usual_name = "libnccl.so.2";

// Versions before 2.9 have two digits less; they are too old in any case.
std::string text_of(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Result<os::DynamicLibrary> open_library(const std::string& path) {
  const char* const named = std::getenv("CKPT_NCCL_LIBRARY");
  if (named != nullptr && *named != '\0') return os::DynamicLibrary::open({named});
  // A second copy would have threads and connections of its own.
  if (auto loaded = os::DynamicLibrary::loaded(usual_name)) return loaded;
  std::vector<std::string> names;
  if (!path.empty()) names.push_back(path);
  names.emplace_back(usual_name);
  return os::DynamicLibrary::open(names);
}

}  // namespace

// NcclSymbols: looks up functions by their names; NCCL has one version of each.
class NcclSymbols {
 public:
  explicit NcclSymbols(const os::DynamicLibrary& library) : library_(library) {}

  template <class Function>
  Status find(Function*& function, const char* name) const {
    if (library_.find(name, function)) return {};
    return fail(Errc::unsupported, fmt::format("{} has no {}", library_.name(), name));
  }

 private:
  const os::DynamicLibrary& library_;
};

Result<std::unique_ptr<NcclLibrary>> NcclLibrary::open(const std::string& path) {
  auto library = open_library(path);
  if (!library) return fail(Errc::unsupported, "NCCL cannot be loaded: " + library.error().text());
  auto opened = std::make_unique<NcclLibrary>();
  opened->name = library->name();
  const NcclSymbols symbols(*library);
  CKPT_CHECK(symbols.find(opened->read_version, "ncclGetVersion"));
  if (opened->read_version(&opened->version) != nccl_success || opened->version < nccl_version_min)
    return fail(Errc::unsupported,
                fmt::format("{} is NCCL {}; {} is the oldest that can be used", opened->name,
                            opened->version_text(), text_of(nccl_version_min)));
  CKPT_CHECK(opened->find_functions(symbols));
  return opened;
}

Status NcclLibrary::find_functions(const NcclSymbols& symbols) {
  CKPT_CHECK(symbols.find(make_id, "ncclGetUniqueId"));
  CKPT_CHECK(symbols.find(join, "ncclCommInitRankConfig"));
  CKPT_CHECK(symbols.find(state, "ncclCommGetAsyncError"));
  CKPT_CHECK(symbols.find(broadcast, "ncclBroadcast"));
  CKPT_CHECK(symbols.find(begin_group, "ncclGroupStart"));
  CKPT_CHECK(symbols.find(end_group, "ncclGroupEnd"));
  CKPT_CHECK(symbols.find(finalize, "ncclCommFinalize"));
  CKPT_CHECK(symbols.find(destroy, "ncclCommDestroy"));
  CKPT_CHECK(symbols.find(abort, "ncclCommAbort"));
  CKPT_CHECK(symbols.find(error_string, "ncclGetErrorString"));
  return symbols.find(last_error, "ncclGetLastError");
}

Status NcclLibrary::check(NcclResult result, std::string_view attempted) const {
  if (result == nccl_success || result == nccl_in_progress) return {};
  const char* const words = error_string(result);
  // Kept by NCCL for the whole process; null is a valid communicator for it.
  const char* const more = last_error(nullptr);
  const bool has_more = more != nullptr && *more != '\0';
  return fail(Errc::io,
              fmt::format("{}: NCCL {}: {} ({}){}{}", attempted, version_text(),
                          words != nullptr ? words : "an unknown error", static_cast<int>(result),
                          has_more ? ": " : "", has_more ? more : ""));
}

std::string NcclLibrary::version_text() const {
  return text_of(version);
}

}  // namespace ckpt::device
