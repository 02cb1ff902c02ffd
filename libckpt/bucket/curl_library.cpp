#include "bucket/curl_library.hpp"

#include "os/dynamic_library.hpp"

namespace ckpt::bucket {

namespace {

Result<CurlLibrary> load_once() {
  auto library = os::DynamicLibrary::open({"libcurl.so.4", "libcurl-gnutls.so.4"});
  if (!library) {
    return fail(Errc::unsupported,
                "s3:// needs libcurl (Debian: libcurl4): " + library.error().text());
  }
  CurlLibrary curl;
  CKPT_CHECK(library->find("curl_easy_init", curl.easy_init));
  CKPT_CHECK(library->find("curl_easy_cleanup", curl.easy_cleanup));
  CKPT_CHECK(library->find("curl_easy_reset", curl.easy_reset));
  CKPT_CHECK(library->find("curl_easy_setopt", curl.easy_setopt));
  CKPT_CHECK(library->find("curl_easy_getinfo", curl.easy_getinfo));
  CKPT_CHECK(library->find("curl_easy_perform", curl.easy_perform));
  CKPT_CHECK(library->find("curl_easy_strerror", curl.easy_strerror));
  CKPT_CHECK(library->find("curl_slist_append", curl.slist_append));
  CKPT_CHECK(library->find("curl_slist_free_all", curl.slist_free_all));
  decltype(&::curl_global_init) global_init = nullptr;
  CKPT_CHECK(library->find("curl_global_init", global_init));
  if (global_init(CURL_GLOBAL_ALL) != CURLE_OK)
    return fail(Errc::unsupported, "s3:// needs libcurl: it cannot be initialized");
  return curl;
}

}  // namespace

Result<const CurlLibrary*> CurlLibrary::load() {
  static const Result<CurlLibrary> loaded = load_once();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace ckpt::bucket
