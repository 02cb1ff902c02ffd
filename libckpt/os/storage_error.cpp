#include "os/storage_error.hpp"

#include <unistd.h>

#include <cerrno>

namespace ckpt::os {

Errc classify_storage_error(int error) {
  switch (error) {
    case ENOENT:
      return Errc::not_found;
    case EEXIST:
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case ELOOP:  // A symbolic link where none may be.
    case ENAMETOOLONG:
    case EINVAL:
      return Errc::invalid_argument;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Errc::exhausted;
    case ENOSYS:
    case EOPNOTSUPP:
      return Errc::unsupported;
    case ECANCELED:
      return Errc::cancelled;
    default:
      return Errc::io;
  }
}

Unexpected storage_failure(int error, std::string text, std::source_location where) {
  // A reader asks first who was refused.
  if (error == EACCES || error == EPERM) text += " as user id " + std::to_string(::geteuid());
  return fail(classify_storage_error(error), std::move(text),
              std::error_code(error, std::generic_category()), where);
}

Unexpected clone_failure(int error, std::string text, std::source_location where) {
  const bool is_refusal = error == EXDEV || error == EINVAL || error == ENOTTY ||
                          error == EOPNOTSUPP || error == ENOSYS;
  if (!is_refusal) return storage_failure(error, std::move(text), where);
  return fail(Errc::unsupported, std::move(text), std::error_code(error, std::generic_category()),
              where);
}

}  // namespace ckpt::os
