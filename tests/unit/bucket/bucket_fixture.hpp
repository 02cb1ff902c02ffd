// BucketFixture: a client and a FileSystem on a server in memory, on a clock that the test moves.
#pragma once

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/spawn.hpp"
#include "bucket/bucket_file.hpp"
#include "bucket/bucket_file_system.hpp"
#include "support/fake_clock.hpp"
#include "unit/bucket/memory_server.hpp"

namespace ckpt::test {

inline bucket::Environment environment_with(std::map<std::string, std::string> variables,
                                            std::map<std::string, std::string> files = {}) {
  bucket::Environment environment;
  environment.variable =
      [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  environment.file = [files =
                          std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
  return environment;
}

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::unique_ptr<bucket::Client> client_of(MemoryServer& server, Clock& clock,
                                                 bucket::Scheme scheme = bucket::Scheme::s3,
                                                 bucket::Patience patience = {}) {
  const auto environment = environment_with({{"AWS_ACCESS_KEY_ID", "key"},
                                             {"AWS_SECRET_ACCESS_KEY", "secret"},
                                             {"LIBCKPT_GS_ACCESS_KEY_ID", "key"},
                                             {"LIBCKPT_GS_SECRET_ACCESS_KEY", "secret"}});
  return std::make_unique<bucket::Client>(clock, *bucket::Settings::read(environment, scheme),
                                          environment, server.transport(), os::DiskPriority::normal,
                                          std::move(patience));
}

class BucketFixture {
 public:
  // Requests run on other threads; when none answers, time jumps to the end of the next pause.
  template <class T>
  Result<T> run(Task<T> task) {
    std::optional<Result<T>> result;
    spawn_into(context.get_executor(), std::move(task), result);
    while (!result) {
      context.restart();
      // A request may still be under way then: the pauses between tries only become shorter.
      if (context.run_one_for(std::chrono::milliseconds(1)) == 0) (void)clock.advance_to_next();
    }
    return std::move(*result);
  }
  template <class T>
  T must(Task<T> task) {
    auto result = run(std::move(task));
    REQUIRE((result ? "" : result.error().message()) == "");
    if constexpr (!std::is_void_v<T>) return std::move(result).value();
  }
  std::size_t count_of(std::string_view method) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        server.log, [&](const std::string& line) { return line.starts_with(method); }));
  }

  asio::io_context context;
  FakeClock clock{context};
  MemoryServer server;
  bucket::BucketFileSystem files{client_of(server, clock)};
};

}  // namespace ckpt::test
