#include <fmt/format.h>

#include <algorithm>
#include <ckpt/options.hpp>
#include <ckpt/version.hpp>

#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace ckpt::cli {

namespace {

const char* grade_text(Finding::Grade grade) {
  switch (grade) {
    case Finding::Grade::good:
      return "good";
    case Finding::Grade::note:
      return "note";
    case Finding::Grade::trouble:
      return "TROUBLE";
  }
  return "unknown";
}

// Finds the options that a trainer here would have, or the mistake in them.
Finding check_options(Options given, bool has_job, Options& effective) {
  Finding finding{"options", Finding::Grade::good, "every value is acceptable", ""};
  // The job's name usually comes from code. Everything else can be checked without it.
  if (!has_job) given.job = "doctor";
  auto resolved = Options::resolve(given);
  if (resolved) {
    effective = std::move(*resolved);
    if (!has_job) effective.job.clear();  // A directory may then be any job's.
    if (effective.disable) {
      finding.grade = Finding::Grade::note;
      finding.text = "libckpt is switched off: every call is a no-op";
      finding.advice = "unset LIBCKPT_DISABLE, or the option disable, to have checkpoints";
    }
    return finding;
  }
  finding.grade = Finding::Grade::trouble;
  finding.text = resolved.error().text();
  finding.advice = "correct this option; the checks below go on with its default";
  return finding;
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:7}  {}: {}\n", grade_text(finding.grade), finding.name,
                        printable(finding.text));
    if (!finding.advice.empty())
      text += fmt::format("{:7}  -> {}\n", "", printable(finding.advice));
  }
  return text;
}

}  // namespace

Result<Outcome> doctor(const DoctorOptions& asked) {
  Options given;
  given.runtime_dir = asked.runtime_dir;
  given.dir = asked.dir;
  CKPT_TRY(const auto origins, explain(given));
  Options effective = given;
  const bool has_job = std::ranges::any_of(origins, [](const OptionOrigin& option) {
    return option.name == "job" && !option.value.empty();
  });
  std::vector<Finding> findings{check_options(given, has_job, effective)};
  for (Finding& finding : examine(effective)) findings.push_back(std::move(finding));

  Outcome outcome;
  outcome.json["version"] = CKPT_VERSION_STRING;
  outcome.json["good"] = true;
  outcome.json["findings"] = Json::array();
  for (const Finding& finding : findings) {
    outcome.is_trouble = outcome.is_trouble || finding.grade == Finding::Grade::trouble;
    outcome.json["findings"].push_back(
        {{"name", finding.name},
         {"grade",
          finding.grade == Finding::Grade::trouble ? "trouble" : grade_text(finding.grade)},
         {"text", finding.text},
         {"advice", finding.advice}});
  }
  outcome.json["good"] = !outcome.is_trouble;
  outcome.json["options"] = Json::array();
  Table table("lll", {"OPTION", "VALUE", "FROM"});
  for (const OptionOrigin& option : origins) {
    // A trainer's `code` is the command line here.
    const std::string origin = option.origin == "code" ? "command line" : option.origin;
    outcome.json["options"].push_back(
        {{"name", option.name}, {"value", option.value}, {"origin", origin}});
    table.add({option.name, option.value.empty() ? "-" : option.value, origin});
  }
  outcome.text = fmt::format("libckpt {}\n\n{}\n{}", CKPT_VERSION_STRING, findings_text(findings),
                             table.to_text(0, text_width()));
  return outcome;
}

}  // namespace ckpt::cli
