// CurlLibrary: libcurl's functions, found at run time.
//
// Only users of buckets need it, and it brings some twenty libraries along, which would otherwise
// be loaded into every trainer.
#pragma once

#include <curl/curl.h>
#include <ckpt/result.hpp>

namespace ckpt::bucket {

struct CurlLibrary {
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...) = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;

  // Loads it at the first call; later ones return the same. Errors: unsupported (names the
  // package).
  static Result<const CurlLibrary*> load();
};

}  // namespace ckpt::bucket
