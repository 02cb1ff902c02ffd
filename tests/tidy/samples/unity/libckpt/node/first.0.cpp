namespace ckpt::node {

using std::chrono::seconds;

namespace {

using wire::FrameKind;
using Record = std::shared_ptr<int>;
using Names = std::vector<int>;

constexpr int retries_max = 3;  // twice(
constexpr std::array words{"one", "two"};
struct Half {
  int part = 0;
};

int twice(int value) {
  const int local = 2 * value;
  return local;
}

template <class Value>
Value once(Value value) {
  return value;
}

static_assert(retries_max > 0);

}  // namespace

int published(int value) {
  return value;
}

}  // namespace ckpt::node
