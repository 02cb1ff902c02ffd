#include "bucket/settings.hpp"

#include <fmt/format.h>

namespace ckpt::bucket {

namespace {

struct Value {
  std::string text;
  std::string origin;  // "AWS_REGION in the environment".
};

std::string explain(const Environment& environment, const std::optional<Value>& endpoint,
                    const std::optional<Value>& region) {
  if (endpoint) {
    return fmt::format("the endpoint is that of {}{}", endpoint->origin, environment.remedy);
  }
  if (region) return fmt::format("the region is that of {}{}", region->origin, environment.remedy);
  return fmt::format("neither {} nor the profile names an endpoint or a region{}", environment.name,
                     environment.remedy);
}

Result<Settings> read_google(const Environment& environment) {
  Settings settings;
  settings.scheme = Scheme::gs;
  settings.region = "auto";  // Google asks for a location in the signature, and takes any.
  const auto url = environment.variable("LIBCKPT_GS_ENDPOINT");
  CKPT_TRY(settings.endpoint, parse_origin(url.value_or("https://storage.googleapis.com")));
  settings.is_path_style = true;
  settings.ca_file = environment.variable("AWS_CA_BUNDLE").value_or("");
  settings.proxies = Proxies::read(environment);
  settings.source = url ? fmt::format("the endpoint is that of LIBCKPT_GS_ENDPOINT in {}{}",
                                      environment.name, environment.remedy)
                        : "the endpoint is Google's own";
  return settings;
}

}  // namespace

Result<Settings> Settings::read(const Environment& environment, Scheme scheme) {
  if (scheme == Scheme::gs) return read_google(environment);
  const Section profile = read_profile(environment);
  const auto first_of = [&](std::initializer_list<const char*> variables,
                            const char* key) -> std::optional<Value> {
    for (const char* name : variables) {
      if (auto value = environment.variable(name))
        return Value{*value, fmt::format("{} in {}", name, environment.name)};
    }
    const auto found = profile.find(key);
    if (found == profile.end() || found->second.empty()) return std::nullopt;
    const std::string profile_name = environment.variable("AWS_PROFILE").value_or("default");
    return Value{found->second, "profile " + profile_name};
  };
  Settings settings;
  const auto region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (region) settings.region = region->text;
  const auto url = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  settings.source = explain(environment, url, region);
  if (url) {
    auto endpoint = parse_origin(url->text);
    if (!endpoint) return fail(std::move(endpoint).error().context(settings.source));
    settings.endpoint = *std::move(endpoint);
    settings.is_path_style = true;  // Most servers have no names for their buckets in DNS.
  }
  settings.ca_file = first_of({"AWS_CA_BUNDLE"}, "ca_bundle").value_or(Value()).text;
  settings.proxies = Proxies::read(environment);
  if (auto style = environment.variable("LIBCKPT_S3_ADDRESSING")) {
    if (*style != "path" && *style != "virtual") {
      return fail(Errc::invalid_argument,
                  fmt::format("LIBCKPT_S3_ADDRESSING is \"{}\" in {}, not path or virtual{}",
                              *style, environment.name, environment.remedy));
    }
    settings.is_path_style = *style == "path";
  }
  return settings;
}

Origin Settings::origin_of(const std::string& bucket) const {
  Origin origin;
  if (endpoint) {
    origin = *endpoint;
  } else {
    const bool is_in_china = region.starts_with("cn-");
    origin.host = fmt::format("s3.{}.amazonaws.com{}", region, is_in_china ? ".cn" : "");
  }
  // A certificate for *.host covers no name with more dots.
  const bool has_dots = bucket.find('.') != std::string::npos && origin.scheme == "https";
  if (is_path_style || has_dots) {
    origin.path += "/" + bucket;
  } else {
    origin.host.insert(0, bucket + ".");
  }
  return origin;
}

std::string Settings::describe() const {
  if (endpoint) return endpoint->scheme + "://" + endpoint->host + endpoint->path;
  return "Amazon S3 in " + region;
}

}  // namespace ckpt::bucket
