#include "os/landlock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "base/assert.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

namespace {

using Rights = std::uint64_t;

// From version 3. The headers of Linux 6.1 do not have it yet.
constexpr Rights truncate_right = Rights{1} << 14;

constexpr Rights write_rights = LANDLOCK_ACCESS_FS_WRITE_FILE | truncate_right;
constexpr Rights file_rights = write_rights | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                               LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK;
constexpr Rights tree_rights = file_rights | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                               LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REFER;
// No place has these: the daemon makes no links and no devices.
constexpr Rights never_granted = LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                 LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK;
constexpr Rights all_changes = tree_rights | never_granted;

Rights rights_of(MayChange::What what) {
  switch (what) {
    case MayChange::What::tree:
      return tree_rights;
    case MayChange::What::files:
      return file_rights;
    case MayChange::What::content:
      return write_rights;
  }
  return 0;
}

Status allow(const Fd& rules, const MayChange& place, Rights known) {
  const bool is_file = place.what == MayChange::What::content;
  const Fd fd(::open(place.path.c_str(), O_PATH | O_CLOEXEC | (is_file ? 0 : O_DIRECTORY)));
  if (!fd) return fail_system("open " + place.path);
  landlock_path_beneath_attr rule{};
  rule.allowed_access = rights_of(place.what) & known;
  rule.parent_fd = fd.number();
  CKPT_ASSERT(rule.allowed_access != 0);
  CKPT_ASSERT((rule.allowed_access & never_granted) == 0);
  if (::syscall(SYS_landlock_add_rule, rules.number(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0u) == 0)
    return {};
  // A pipe, as of /dev/stdout, lies in no directory, and is not restricted.
  if (is_file && errno == EBADFD) return {};
  return fail_system("let Landlock allow " + place.path);
}

}  // namespace

int landlock_version() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, std::size_t{0},
                                 LANDLOCK_CREATE_RULESET_VERSION);
  return version < 0 ? 0 : static_cast<int>(version);
}

Status restrict_changes(std::span<const MayChange> places, int version) {
  if (version == 0)
    return fail(Errc::unsupported, "the kernel has no Landlock, or it is switched off here");
  if (version < landlock_version_wanted)
    return fail(Errc::unsupported,
                fmt::format("the kernel has version {} of Landlock, and it takes version {} "
                            "(Linux 5.19) to publish a step",
                            version, landlock_version_wanted));
  const Rights known = version < 3 ? all_changes & ~truncate_right : all_changes;
  landlock_ruleset_attr attributes{};
  attributes.handled_access_fs = known;
  // Its size is that of version 1, which has the rights of files alone.
  const Fd rules(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes,
                                            sizeof attributes.handled_access_fs, 0u)));
  if (!rules) return fail_system("make rules of Landlock");
  for (const MayChange& place : places) CKPT_CHECK(allow(rules, place, known));
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail_system("renounce new rights");
  if (::syscall(SYS_landlock_restrict_self, rules.number(), 0u) != 0)
    return fail_system("restrict this process by Landlock");
  return {};
}

}  // namespace ckpt::os
