#include "os/limits.hpp"

#include <sys/resource.h>

#include "os/fd.hpp"

namespace ckpt::os {

namespace {

static_assert(RLIM_INFINITY == unlimited);

int resource_of(Limit limit) {
  return limit == Limit::locked_memory ? RLIMIT_MEMLOCK : RLIMIT_NOFILE;
}
const char* name_of(Limit limit) {
  return limit == Limit::locked_memory ? "locked memory" : "open files";
}

}  // namespace

Result<LimitValues> limit_values(Limit limit) {
  rlimit values{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource_of(limit)), &values) != 0) {
    return fail_system(std::string("read the limit of ") + name_of(limit));
  }
  return LimitValues{values.rlim_cur, values.rlim_max};
}

Result<LimitValues> raise_limit(Limit limit) {
  CKPT_TRY(LimitValues values, limit_values(limit));
  if (values.soft == values.hard) return values;
  const rlimit raised{values.hard, values.hard};
  if (::setrlimit(static_cast<__rlimit_resource>(resource_of(limit)), &raised) != 0) {
    return fail_system(std::string("raise the limit of ") + name_of(limit));
  }
  values.soft = values.hard;
  return values;
}

}  // namespace ckpt::os
