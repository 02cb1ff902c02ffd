#include "storage/zstd_library.hpp"

#include "os/dynamic_library.hpp"

namespace ckpt::storage {

namespace {

Result<ZstdLibrary> load_once() {
  auto library = os::DynamicLibrary::open({"libzstd.so.1"});
  if (!library) {
    return fail(Errc::unsupported, "compressed checkpoints need libzstd (Debian: libzstd1): " +
                                       library.error().text());
  }
  ZstdLibrary zstd;
  CKPT_CHECK(library->find("ZSTD_createCCtx", zstd.create_compression));
  CKPT_CHECK(library->find("ZSTD_freeCCtx", zstd.free_compression));
  CKPT_CHECK(library->find("ZSTD_CCtx_setParameter", zstd.set_parameter));
  CKPT_CHECK(library->find("ZSTD_compress2", zstd.compress));
  CKPT_CHECK(library->find("ZSTD_createDCtx", zstd.create_decompression));
  CKPT_CHECK(library->find("ZSTD_freeDCtx", zstd.free_decompression));
  CKPT_CHECK(library->find("ZSTD_decompressDCtx", zstd.decompress));
  CKPT_CHECK(library->find("ZSTD_getFrameContentSize", zstd.content_bytes));
  CKPT_CHECK(library->find("ZSTD_findFrameCompressedSize", zstd.frame_bytes));
  CKPT_CHECK(library->find("ZSTD_isError", zstd.is_error));
  CKPT_CHECK(library->find("ZSTD_getErrorName", zstd.error_name));
  return zstd;
}

}  // namespace

Result<const ZstdLibrary*> ZstdLibrary::load() {
  static const Result<ZstdLibrary> loaded = load_once();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace ckpt::storage
