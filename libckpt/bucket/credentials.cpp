#include "bucket/credentials.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "bucket/answers.hpp"
#include "bucket/http_time.hpp"

namespace ckpt::bucket {

namespace {

using Found = Result<std::optional<Credentials>>;  // Nothing: this place has none.

// The tools of AWS renew that long before the end, too.
constexpr auto renewed_before = std::chrono::minutes(5);

Credentials with_keys(std::string access_key, std::string secret_key, std::string token,
                      std::string origin) {
  Credentials found;
  found.keys = {std::move(access_key), std::move(secret_key), std::move(token)};
  found.origin = std::move(origin);
  return found;
}

Found from_environment(const Environment& environment) {
  const auto access_key = environment.variable("AWS_ACCESS_KEY_ID");
  const auto secret_key = environment.variable("AWS_SECRET_ACCESS_KEY");
  if (!access_key || !secret_key) return std::optional<Credentials>();
  return with_keys(*access_key, *secret_key, environment.variable("AWS_SESSION_TOKEN").value_or(""),
                   environment.name);
}

Found from_profile(const Environment& environment) {
  const Section profile = read_profile(environment);
  const auto value = [&](const char* key) {
    const auto found = profile.find(key);
    return found == profile.end() ? std::string() : found->second;
  };
  if (value("aws_access_key_id").empty() || value("aws_secret_access_key").empty())
    return std::optional<Credentials>();
  return with_keys(value("aws_access_key_id"), value("aws_secret_access_key"),
                   value("aws_session_token"),
                   "profile " + environment.variable("AWS_PROFILE").value_or("default"));
}

Result<std::string> ask(Transport& transport, Request request, std::string_view what) {
  auto answer = transport.perform(request);
  if (!answer) return fail(std::move(answer).error().context(fmt::format("ask {}", what)));
  if (answer->is_good()) return std::move(answer->body);
  return fail(Errc::io, fmt::format("ask {}: it answered {}", what, answer->status));
}

// The services of containers and instances answer in the same words.
Result<Credentials> parse_json(const std::string& text, const std::string& origin) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto value = [&](const char* key) {
    const bool is_text = json.is_object() && json.contains(key) && json[key].is_string();
    return is_text ? json[key].get<std::string>() : std::string();
  };
  if (value("AccessKeyId").empty() || value("SecretAccessKey").empty())
    return fail(Errc::io, fmt::format("ask {}: its answer has no keys", origin));
  Credentials found =
      with_keys(value("AccessKeyId"), value("SecretAccessKey"), value("Token"), origin);
  found.expires = parse_iso_time(value("Expiration"));
  return found;
}

Found from_web_identity(const Environment& environment, const std::string& region,
                        Transport& transport) {
  const auto file = environment.variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = environment.variable("AWS_ROLE_ARN");
  if (!file || !role) return std::optional<Credentials>();
  const auto token = environment.file(*file);
  if (!token)
    return fail(Errc::not_found, "read the web identity's token " + *file + ": it cannot be read");
  Request request;
  const auto url = environment.variable("AWS_ENDPOINT_URL_STS");
  CKPT_TRY(request.origin,
           parse_origin(url.value_or(fmt::format("https://sts.{}.amazonaws.com", region))));
  request.query = {
      {"Action", "AssumeRoleWithWebIdentity"},
      {"Version", "2011-06-15"},
      {"RoleArn", *role},
      {"RoleSessionName", environment.variable("AWS_ROLE_SESSION_NAME").value_or("libckpt")},
      {"WebIdentityToken", token->substr(0, token->find_last_not_of(" \r\n") + 1)}};
  CKPT_TRY(const std::string text, ask(transport, request, "the service for web identities"));
  CKPT_TRY(const AssumedRole assumed, parse_assumed_role(text));
  Credentials found = with_keys(assumed.keys.access_key, assumed.keys.secret_key,
                                assumed.keys.session_token, "the web identity");
  found.expires = parse_iso_time(assumed.expiration);
  return found;
}

Found from_container(const Environment& environment, Transport& transport) {
  std::string url;
  if (const auto relative = environment.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"))
    url = "http://169.254.170.2" + *relative;
  else
    url = environment.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI").value_or("");
  if (url.empty()) return std::optional<Credentials>();
  Request request;
  // The query is part of what it was given: it is not touched.
  const auto end = url.find('/', url.find("://") + 3);
  CKPT_TRY(request.origin, parse_origin(url.substr(0, end)));
  if (end != std::string::npos) request.key = url.substr(end + 1);
  request.is_local = true;
  auto token = environment.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const auto file = environment.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"))
    token = environment.file(*file);
  if (token) {
    request.headers.push_back(
        {"authorization", token->substr(0, token->find_last_not_of(" \r\n") + 1)});
  }
  CKPT_TRY(const std::string text, ask(transport, request, "the container's service for keys"));
  CKPT_TRY(Credentials found, parse_json(text, "the container's service for keys"));
  return found;
}

Found from_instance(const Environment& environment, Transport& transport) {
  if (environment.variable("AWS_EC2_METADATA_DISABLED") == "true")
    return std::optional<Credentials>();
  const std::string what = "the instance's metadata";
  Request request;
  CKPT_TRY(request.origin, parse_origin(environment.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT")
                                            .value_or("http://169.254.169.254")));
  request.is_local = true;
  request.method = "PUT";
  request.key = "latest/api/token";
  request.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  const auto token = transport.perform(request);
  if (!token || !token->is_good()) return std::optional<Credentials>();  // Not an instance.
  request.method = "GET";
  request.headers = {{"x-aws-ec2-metadata-token", token->body}};
  const std::string folder = "latest/meta-data/iam/security-credentials/";
  request.key = folder;
  const auto roles = transport.perform(request);
  if (!roles || !roles->is_good()) return std::optional<Credentials>();  // It has no role.
  request.key = folder + roles->body.substr(0, roles->body.find('\n'));
  CKPT_TRY(const std::string text, ask(transport, request, what));
  CKPT_TRY(Credentials found, parse_json(text, what));
  return found;
}

}  // namespace

Result<Credentials> find_credentials(const Environment& environment, const std::string& region,
                                     Transport& transport) {
  const std::array<std::function<Found()>, 5> places{
      [&] { return from_environment(environment); },
      [&] { return from_web_identity(environment, region, transport); },
      [&] { return from_profile(environment); },
      [&] { return from_container(environment, transport); },
      [&] { return from_instance(environment, transport); }};
  for (const auto& look : places) {
    CKPT_TRY(auto found, look());
    if (found) return *std::move(found);
  }
  return fail(Errc::io,
              fmt::format("find keys for S3: there are none in {} (AWS_ACCESS_KEY_ID, "
                          "AWS_SECRET_ACCESS_KEY), in ~/.aws/credentials (profile {}), from a web "
                          "identity, a container or an instance{}{}",
                          environment.name, environment.variable("AWS_PROFILE").value_or("default"),
                          environment.remedy,
                          environment.remedy.empty() ? ""
                                                     : "; or write the keys into the profile, "
                                                       "which is read again"));
}

Result<Credentials> find_google_credentials(const Environment& environment) {
  const auto access_key = environment.variable("LIBCKPT_GS_ACCESS_KEY_ID");
  const auto secret_key = environment.variable("LIBCKPT_GS_SECRET_ACCESS_KEY");
  if (access_key && secret_key) return with_keys(*access_key, *secret_key, "", environment.name);
  return fail(
      Errc::io,
      fmt::format("find keys for Google Cloud Storage: LIBCKPT_GS_ACCESS_KEY_ID and "
                  "LIBCKPT_GS_SECRET_ACCESS_KEY are not set in {}: they are an HMAC key of a "
                  "service account{}",
                  environment.name, environment.remedy));
}

Result<Credentials> CredentialSource::at(WallTime now) {
  const std::lock_guard lock(mutex_);
  const bool is_old = known_ && known_->expires && *known_->expires < now + renewed_before;
  if (known_ && !is_old) return *known_;
  auto found = scheme_ == Scheme::gs ? find_google_credentials(environment_)
                                     : find_credentials(environment_, region_, transport_);
  if (!found) {
    // Better ones cannot be had now: those that have not ended yet still do.
    if (known_ && known_->expires > now) return *known_;
    return found;
  }
  known_ = *found;
  return found;
}

void CredentialSource::forget(const Credentials& refused) {
  const std::lock_guard lock(mutex_);
  if (known_ && known_->keys.access_key == refused.keys.access_key &&
      known_->keys.session_token == refused.keys.session_token)
    known_.reset();
}

}  // namespace ckpt::bucket
