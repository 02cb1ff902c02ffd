// BucketUnderTest: an empty folder of a bucket, of a server in memory or of a real one.
//
// A real server is the one that CKPT_TEST_BUCKET names, as "s3://bucket".
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "bucket/any_file_system.hpp"
#include "os/pool_file_system.hpp"
#include "unit/bucket/bucket_fixture.hpp"

namespace ckpt::test {

enum class WhichBucket : std::uint8_t { amazon_in_memory, google_in_memory, real };

class BucketUnderTest : public BucketFixture {
 public:
  explicit BucketUnderTest(WhichBucket which) : which_(which) {
    server.is_google = which == WhichBucket::google_in_memory;
    if (which == WhichBucket::real) {
      system_clock_ = make_system_clock(context.get_executor());
      root_ = std::string(std::getenv("CKPT_TEST_BUCKET")) + "/contract-" +
              std::to_string(random_from_system());
    } else {
      root_ = server.is_google ? "gs://bucket/here" : "s3://bucket/here";
    }
    buckets_ = make_files();
  }
  static bool is_there(WhichBucket which) {
    return which != WhichBucket::real || std::getenv("CKPT_TEST_BUCKET") != nullptr;
  }

  // Another daemon's: it shares nothing with `all()` but the server.
  std::unique_ptr<os::FileSystem> make_files() {
    if (which_ != WhichBucket::real) {
      const auto scheme = server.is_google ? bucket::Scheme::gs : bucket::Scheme::s3;
      return std::make_unique<bucket::BucketFileSystem>(client_of(server, clock, scheme));
    }
    constexpr auto priority = os::DiskPriority::normal;
    return bucket::with_buckets(os::make_pool_file_system(1, priority), *system_clock_, priority);
  }

  os::FileSystem& all() { return *buckets_; }
  os::Objects& objects() { return *buckets_->objects(root_); }
  Clock& clock_in_use() {
    if (system_clock_) return *system_clock_;
    return clock;
  }
  const std::string& root() const { return root_; }
  std::string at(const std::string& name) const { return root_ + "/" + name; }
  std::string read(const std::string& name) {
    return text_of(must(all().read_small(at(name), std::uint64_t{1} << 26)));
  }

 private:
  const WhichBucket which_;
  std::unique_ptr<Clock> system_clock_;
  std::unique_ptr<os::FileSystem> buckets_;
  std::string root_;
};

}  // namespace ckpt::test
