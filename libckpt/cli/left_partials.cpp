#include "cli/left_partials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/log.hpp"
#include "os/path.hpp"

namespace ckpt::cli {

namespace {

// Partial: the file that was to become of `.NAME.HEX.partial`, and which attempt wrote it.
struct Partial {
  std::string_view name, attempt;  // Empty: it is another file.
};

Partial parse_partial(std::string_view name) {
  constexpr std::size_t digits = 16;
  constexpr std::string_view end = ".partial";
  if (!name.starts_with('.') || !name.ends_with(end)) return {};
  name = name.substr(1, name.size() - 1 - end.size());
  if (name.size() < digits + 2 || name[name.size() - digits - 1] != '.') return {};
  const std::string_view attempt = name.substr(name.size() - digits);
  if (attempt.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  return {name.substr(0, name.size() - digits - 1), attempt};
}

// By attempt, when one of its files was written last.
using LastWritten = std::map<std::string, std::chrono::nanoseconds, std::less<>>;
Task<LastWritten> last_written(os::FileSystem& files, std::string directory,
                               std::vector<os::DirectoryEntry> entries) {
  LastWritten written;
  for (const os::DirectoryEntry& entry : entries) {
    const Partial partial = parse_partial(entry.name);
    if (partial.name.empty()) continue;
    const auto there = co_await files.status(os::beneath(directory, entry.name));
    if (!there && there.error().code() == Errc::not_found) continue;
    if (!there) co_return fail(Error(there.error()));
    std::chrono::nanoseconds& newest = written[std::string(partial.attempt)];
    newest = std::max(newest, std::chrono::nanoseconds(there->modified_ns));
  }
  co_return written;
}

}  // namespace

std::string partial_name(std::string_view name, std::uint64_t attempt) {
  return fmt::format(".{}.{:016x}.partial", name, attempt);
}

std::string shown_path(std::string_view path) {
  std::string text = os::display(path);
  if (text.starts_with("./")) text.erase(0, 2);
  return text;
}

Task<void> remove_left_partials(os::FileSystem& files, std::string directory, IsOurs is_ours,
                                std::chrono::system_clock::time_point now) {
  CKPT_CO_TRY(const auto entries, co_await files.list(os::beneath(directory, ".")));
  CKPT_CO_TRY(const LastWritten written, co_await last_written(files, directory, entries));
  for (const os::DirectoryEntry& entry : entries) {
    const Partial partial = parse_partial(entry.name);
    if (entry.kind != os::EntryKind::file || partial.name.empty() || !is_ours(partial.name))
      continue;
    const auto last = written.find(partial.attempt);
    if (last == written.end()) continue;  // Somebody has renamed or removed it meanwhile.
    const std::string path = os::beneath(directory, entry.name);
    if (now.time_since_epoch() - last->second < partial_left_after) {
      log_warning(
          "keeps {}: an export on another machine may still write it; one an hour later removes it",
          shown_path(path));
      continue;
    }
    // Another machine may remove it, too, and it may be another user's: ours goes on all the same.
    const auto removed = co_await files.remove_file(path);
    if (removed) {
      log_warning("removed {}, which an export that was killed has left", shown_path(path));
    } else if (removed.error().code() != Errc::not_found) {
      log_warning("keeps {}, which an export that was killed has left: {}", shown_path(path),
                  removed.error().message());
    }
  }
  co_return Status();
}

}  // namespace ckpt::cli
