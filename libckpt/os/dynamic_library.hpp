// DynamicLibrary: a shared library that is loaded at run time, since not every machine has it.
//
// Lifetime: it stays loaded until the process ends. Drivers keep threads and callbacks of their
// own, which unloading would leave without code.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <vector>

namespace ckpt::os {

class DynamicLibrary {
 public:
  // Opens the first of `names` that can be loaded. Errors: not_found, with the loader's message for
  // each.
  static Result<DynamicLibrary> open(const std::vector<std::string>& names);
  // The library that this process has loaded under that name already, whoever loaded it. Errors:
  // not_found (it has not).
  static Result<DynamicLibrary> loaded(const std::string& name);

  // Looks up a function, as in symbol<int(unsigned)>("cuInit"). Errors: unsupported (an older
  // library).
  template <class Function>
  Result<Function*> symbol(const char* name) const {
    CKPT_TRY(void* address, address_of(name));
    return reinterpret_cast<Function*>(address);
  }
  // Sets `function` to it. Errors: as symbol().
  template <class Function>
  Status find(const char* name, Function*& function) const {
    CKPT_TRY(function, symbol<Function>(name));
    return {};
  }
  const std::string& name() const { return name_; }

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  Result<void*> address_of(const char* name) const;

  void* handle_;
  std::string name_;
};

}  // namespace ckpt::os
