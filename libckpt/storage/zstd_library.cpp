#include "storage/zstd_library.hpp"

#include <mutex>
#include <optional>

#include "os/dynamic_library.hpp"

namespace ckpt::storage {

namespace {

template <class Function>
Status find(const os::DynamicLibrary& library, const char* name, Function*& function) {
  CKPT_TRY(function, library.symbol<Function>(name));
  return {};
}

Result<ZstdLibrary> load_once() {
  auto library = os::DynamicLibrary::open({"libzstd.so.1"});
  if (!library) {
    return fail(Errc::unsupported, "compressed checkpoints need libzstd (Debian: libzstd1): " +
                                       library.error().text());
  }
  ZstdLibrary zstd;
  CKPT_CHECK(find(*library, "ZSTD_createCCtx", zstd.create_compression));
  CKPT_CHECK(find(*library, "ZSTD_freeCCtx", zstd.free_compression));
  CKPT_CHECK(find(*library, "ZSTD_CCtx_setParameter", zstd.set_parameter));
  CKPT_CHECK(find(*library, "ZSTD_compress2", zstd.compress));
  CKPT_CHECK(find(*library, "ZSTD_createDCtx", zstd.create_decompression));
  CKPT_CHECK(find(*library, "ZSTD_freeDCtx", zstd.free_decompression));
  CKPT_CHECK(find(*library, "ZSTD_decompressDCtx", zstd.decompress));
  CKPT_CHECK(find(*library, "ZSTD_getFrameContentSize", zstd.content_bytes));
  CKPT_CHECK(find(*library, "ZSTD_findFrameCompressedSize", zstd.frame_bytes));
  CKPT_CHECK(find(*library, "ZSTD_isError", zstd.is_error));
  CKPT_CHECK(find(*library, "ZSTD_getErrorName", zstd.error_name));
  return zstd;
}

}  // namespace

Result<const ZstdLibrary*> ZstdLibrary::load() {
  static std::mutex mutex;
  static std::optional<Result<ZstdLibrary>> loaded;
  const std::lock_guard lock(mutex);
  if (!loaded) loaded.emplace(load_once());
  if (!*loaded) return fail(loaded->error());
  return &**loaded;
}

}  // namespace ckpt::storage
