#include "storage/retention_record.hpp"

#include "format/run_files.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

Task<std::optional<RetentionRule>> load_retention(Site site, format::RunId run) {
  const std::string path = site.at(retention_name);
  std::optional<RetentionRule> rule;
  const auto bytes = co_await site.files().read_small(path, format::run_file_bytes_max);
  if (!bytes && bytes.error().code() == Errc::not_found) co_return rule;
  if (!bytes) co_return fail(Error(bytes.error()));
  auto words = format::parse_retention(
      std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  if (!words) co_return fail(std::move(words).error().context("read " + os::display(path)));
  if (words->run != run) co_return rule;  // A run that was here before wrote it.
  rule.emplace();
  rule->max_ckpt_num = words->max_ckpt_num;
  rule->keep_every = words->keep_every;
  rule->best = {words->keep_best, words->best_metric, words->best_is_greatest};
  co_return rule;
}

Task<void> record_retention(Site site, RetentionRecord record) {
  const auto known = co_await load_retention(site, record.run);
  if (known && known->value_or(RetentionRule()) == record.rule) co_return Status();
  // One that cannot be read is replaced; where the disk fails, so does this.
  const RetentionRule& rule = record.rule;
  format::RetentionWords words;
  words.run = record.run;
  words.max_ckpt_num = rule.max_ckpt_num;
  words.keep_every = rule.keep_every;
  words.keep_best = rule.best.count;
  words.best_metric = rule.best.metric;
  words.best_is_greatest = rule.best.is_greatest;
  const std::string text = format::render(words);
  const std::string aside = aside_name(retention_name, record.attempt);
  Status done = co_await replace_hint(site, std::string(retention_name), text, aside);
  co_return done;
}

}  // namespace ckpt::storage
