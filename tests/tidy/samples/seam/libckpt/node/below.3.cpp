#include "storage/attempt.hpp"

bool is_in_bucket(const Site& site) {
  return site.objects() != nullptr;
}

std::string where(const Site& site) {
  return storage::attempt_path(site, "a");
}
