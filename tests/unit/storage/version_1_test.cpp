// Goal:   checkpoints that version 1 of the format stored are restored, verified and deleted.
// Method: the stored example of version 1 is laid out as a directory, beside a new checkpoint.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "support/remove_named.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

const std::string path_of_version_1 = "/scratch/job/step-000000900";

std::string golden(const std::string& name) {
  std::ifstream file(std::string(CKPT_GOLDEN_DIR) + "/" + name, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  REQUIRE_FALSE(content.empty());
  return content;
}

class Version1 : public StorageFixture {
 public:
  Version1() {
    disk.put_directory("/scratch/job");
    disk.put_directory("/scratch/job/.libckpt");
    disk.put_directory(path_of_version_1);
    disk.put(path_of_version_1 + "/manifest.json", golden("v1.manifest.json"));
    disk.put(path_of_version_1 + "/rank-00000.safetensors", golden("v1.safetensors"));
    disk.put(path_of_version_1 + "/rank-00000.blobs", golden("v1.blobs"));
  }
  storage::Catalog read() {
    auto found = run(storage::read_catalog(site, {}));
    REQUIRE(found);
    return std::move(found).value();
  }
};

}  // namespace

TEST_CASE_METHOD(Version1, "version 1: a checkpoint is listed, verified and restored",
                 "[unit][storage]") {
  const auto catalog = read();
  REQUIRE(catalog.rejected.empty());
  REQUIRE(catalog.checkpoints.size() == 1);
  CHECK(catalog.checkpoints[0].at == step_id(900, 2));
  CHECK(catalog.checkpoints[0].job == "gpt2");
  CHECK(catalog.checkpoints[0].bytes == 8217 + 48);
  const auto report = run(storage::verify_checkpoint(files, path_of_version_1));
  REQUIRE(report);
  CHECK(report->is_good());
  CHECK(report->files.size() == 2);
  CHECK(report->foreign.empty());
  const auto manifest = run(storage::read_manifest(site, "step-000000900"));
  const auto record = run(storage::read_record(files, path_of_version_1, *manifest, 0));
  REQUIRE(record);
  CHECK(format::digest_of(**record) == catalog.checkpoints[0].digests[0]);
  std::vector<std::byte> target((*record)->bytes);
  const storage::TransferHooks hooks;
  REQUIRE(run(
      storage::read_shard(files, storage::ShardPlace(path_of_version_1), *record, target, hooks)));
  const format::TensorPlace& tensor = (*record)->layout.tensors.front();
  CHECK(tensor.name == "embed.weight");
  for (std::uint64_t at = 0; at < tensor.extent.bytes; ++at)
    REQUIRE(target[tensor.extent.offset + at] == static_cast<std::byte>(at % 251));
}

TEST_CASE_METHOD(Version1, "version 1: damage to its files is found", "[unit][storage]") {
  disk.flip(path_of_version_1 + "/rank-00000.safetensors", 5000, 1);
  const auto report = run(storage::verify_checkpoint(files, path_of_version_1));
  REQUIRE(report);
  CHECK_FALSE(report->is_good());
  CHECK(report->files[0].problem.find("chunk 0") != std::string::npos);
  disk.erase(path_of_version_1 + "/rank-00000.blobs");
  CHECK(read().checkpoints.empty());
}

TEST_CASE_METHOD(Version1, "version 1: a checkpoint is deleted with all its files",
                 "[unit][storage]") {
  const format::RunId run_id = read().checkpoints.at(0).run;
  REQUIRE(run(remove_named(site, "step-000000900", run_id)));
  CHECK(leftovers().empty());
  CHECK_FALSE(disk.exists(path_of_version_1));
}

}  // namespace ckpt::test
