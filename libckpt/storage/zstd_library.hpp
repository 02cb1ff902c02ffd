// ZstdLibrary: libzstd's functions, found at run time.
//
// Only stores with `compression` need it, so a trainer without them does not load it.
#pragma once

#include <zstd.h>
#include <ckpt/result.hpp>

namespace ckpt::storage {

struct ZstdLibrary {
  decltype(&::ZSTD_createCCtx) create_compression = nullptr;
  decltype(&::ZSTD_freeCCtx) free_compression = nullptr;
  decltype(&::ZSTD_CCtx_setParameter) set_parameter = nullptr;
  decltype(&::ZSTD_compress2) compress = nullptr;
  decltype(&::ZSTD_createDCtx) create_decompression = nullptr;
  decltype(&::ZSTD_freeDCtx) free_decompression = nullptr;
  decltype(&::ZSTD_decompressDCtx) decompress = nullptr;
  decltype(&::ZSTD_getFrameContentSize) content_bytes = nullptr;
  decltype(&::ZSTD_findFrameCompressedSize) frame_bytes = nullptr;
  decltype(&::ZSTD_isError) is_error = nullptr;
  decltype(&::ZSTD_getErrorName) error_name = nullptr;

  // Loads it at the first call; later ones return the same. Errors: unsupported (names the
  // package).
  static Result<const ZstdLibrary*> load();
};

}  // namespace ckpt::storage
