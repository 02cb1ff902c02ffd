#include "os/dynamic_library.hpp"

#include <dlfcn.h>

namespace ckpt::os {

namespace {
std::string loader_words() {
  const char* words = ::dlerror();
  return words != nullptr ? words : "the loader says nothing";
}
}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const std::vector<std::string>& names) {
  std::string reasons;
  for (const std::string& name : names) {
    // RTLD_LOCAL: our copy's symbols must not replace those of a copy that the trainer has loaded.
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return DynamicLibrary(handle, name);
    if (!reasons.empty()) reasons += "; ";
    reasons += loader_words();
  }
  if (reasons.empty()) reasons = "no name was given";
  return fail(Errc::not_found, "load a library: " + reasons);
}

Result<DynamicLibrary> DynamicLibrary::loaded(const std::string& name) {
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != nullptr) return DynamicLibrary(handle, name);
  return fail(Errc::not_found, name + " is not loaded in this process");
}

Result<void*> DynamicLibrary::address_of(const char* name) const {
  void* address = ::dlsym(handle_, name);
  if (address != nullptr) return address;
  return fail(Errc::unsupported,
              "find " + std::string(name) + " in " + name_ + ": " + loader_words());
}

}  // namespace ckpt::os
