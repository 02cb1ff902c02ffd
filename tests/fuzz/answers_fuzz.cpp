// Goal:   no answer of a server of buckets crashes or hangs its reader.
// Method: the same text as each kind of answer; pages that say they go on must say where.
#include "bucket/answers.hpp"
#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes input) {
  const std::string_view text = text_of(input);
  if (const auto page = bucket::parse_list(text)) {
    promise(page->objects.size() + page->prefixes.size() <= text.size(), "a page is in its text");
    for (const auto& object : page->objects) promise(!object.key.empty(), "an object has a key");
  }
  if (const auto page = bucket::parse_uploads(text)) {
    promise(page->uploads.size() <= text.size(), "a page is in its text");
  }
  if (const auto upload = bucket::parse_upload_id(text))
    promise(!upload->empty(), "an upload has an id");
  if (const auto role = bucket::parse_assumed_role(text))
    promise(!role->keys.access_key.empty() && !role->keys.secret_key.empty(),
            "a role has both keys");
  const bucket::ServerError error = bucket::parse_error(text);
  promise(error.code.size() <= text.size() * 4, "an error's code is in its text");
}

}  // namespace ckpt::fuzz
