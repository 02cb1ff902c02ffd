#include "storage/event_log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/random.hpp"
#include "format/json.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

std::string render(const Event& event, std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since - seconds);
  std::string line = fmt::format("{{\"time\":\"{:%Y-%m-%dT%H:%M:%S}.{:03}Z\",\"process\":{}",
                                 fmt::gmtime(static_cast<std::time_t>(seconds.count())),
                                 millis.count(), ::getpid());
  const auto add_text = [&](const char* key, const std::string& value) {
    line += fmt::format(",\"{}\":", key);
    format::append_json(line, value);
  };
  add_text("operation", event.operation);
  add_text("path", event.path);
  line += fmt::format(",\"step\":{},\"timeline\":{},\"bytes\":{}", number(event.at.step),
                      event.at.timeline, event.bytes);
  add_text("reason", event.reason);
  return line + "}\n";
}

namespace {

// An object cannot be appended to, so each line is an object. Their names are in the order of time.
Task<void> put_event(Site site, std::vector<std::byte> line) {
  const auto now = site.clock().wall_time().time_since_epoch();
  const std::string name = fmt::format(
      "{:015}-{:016x}.json", std::chrono::duration_cast<std::chrono::milliseconds>(now).count(),
      random_from_system());
  const os::PutCondition absent(os::PutMode::if_absent);
  const std::string path = os::join(site.at(log_folder_name), name);
  Status put = co_await site.objects()->put_small(path, std::move(line), absent);
  co_return put;
}

}  // namespace

Task<void> record_event(Site site, Event event, os::Syncing syncing) {
  const std::string line = render(event, site.clock().wall_time());
  const auto bytes = std::as_bytes(std::span(line));
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  if (site.objects() != nullptr) {
    Status put = co_await put_event(site, std::move(copy));
    if (!put) co_return fail(std::move(put).error().context("log a " + event.operation));
    co_return Status();
  }
  Status done = co_await site.files().append_small(site.at(log_name), std::move(copy), syncing);
  // A full disk must not stop the deletion that makes room.
  if (!done && done.error().code() == Errc::exhausted) {
    log_warning("storage: {} could not be appended to ({}): {}", os::display(site.at(log_name)),
                done.error().message(), line);
    co_return Status();
  }
  if (!done) co_return fail(std::move(done).error().context("log a " + event.operation));
  co_return Status();
}

}  // namespace ckpt::storage
