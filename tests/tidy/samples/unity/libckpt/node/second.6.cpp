namespace ckpt::node {

namespace {

using wire::FrameKind;
using Record = std::shared_ptr<int>;
using Names = std::set<int>;

constexpr std::chrono::seconds retries_max(3);
constexpr int words[] = {1, 2};
class Half;

enum class Half { left, right };

std::string twice(const std::string& text) {
  int local = 0;
  return text + text;
}

template <class Value, class Other = std::vector<Value>>
Value once(Value value, Other other) {
  return value;
}

static_assert(sizeof(words) > 0);

}  // namespace

int published() {
  return 0;
}

}  // namespace ckpt::node
