#include "format/layout_codec.hpp"

#include "format/layout_validation.hpp"

namespace ckpt::format {

void write(Writer& writer, const Layout& layout) {
  PlainWriter(writer).put(layout);
}

Layout read_layout(Reader& reader) {
  Layout layout;
  PlainReader(reader).take(layout);
  if (!reader.is_good()) return {};
  if (const auto status = validate(layout); !status) {
    reader.fail_here(status.error().text());
    return {};
  }
  return layout;
}

}  // namespace ckpt::format
