#include "storage/event_log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/log.hpp"
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

Task<void> record_event(Site site, Event event) {
  const std::string line = render(event, site.clock().wall_time());
  const auto bytes = std::as_bytes(std::span(line));
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  Status done = co_await site.files().append_small(site.at(log_name), std::move(copy));
  if (!done && done.error().code() == Errc::exhausted) {
    log_warning("storage: {} could not be appended to ({}): {}", os::display(site.at(log_name)),
                done.error().message(), line);
    co_return Status();
  }
  if (!done) co_return fail(std::move(done).error().context("log a " + event.operation));
  co_return Status();
}

}  // namespace ckpt::storage
