#include "cli/storage_read.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/table.hpp"

namespace ckpt::cli {

namespace {

bool is_damaged(const storage::Rejected& rejected) {
  return rejected.code != Errc::invalid_argument;
}

}  // namespace

Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory) {
  const storage::Site site(workplace.files(), workplace.clock(), directory);
  storage::CatalogOptions options;
  options.make_durable = false;  // Who looks leaves no trace.
  auto catalog = workplace.run(storage::read_catalog(site, options));
  if (catalog || catalog.error().code() != Errc::not_found) return catalog;
  return fail(Errc::not_found,
              fmt::format("look for checkpoints in {}: there is no such directory; name the one "
                          "that the job was given as `dir`",
                          directory));
}

Json to_json(const std::vector<storage::Rejected>& rejected) {
  Json list = Json::array();
  for (const storage::Rejected& each : rejected) {
    list.push_back({{"name", each.name},
                    {"damaged", is_damaged(each)},
                    {"code", to_string(each.code)},
                    {"reason", each.reason}});
  }
  return list;
}

std::string describe(const std::vector<storage::Rejected>& rejected) {
  std::string text;
  for (const storage::Rejected& each : rejected) {
    text += fmt::format("{} {}: {}\n", is_damaged(each) ? "DAMAGED" : "ignored",
                        printable(each.name), printable(each.reason));
  }
  return text;
}

bool has_damaged(const std::vector<storage::Rejected>& rejected) {
  return std::any_of(rejected.begin(), rejected.end(), is_damaged);
}

}  // namespace ckpt::cli
