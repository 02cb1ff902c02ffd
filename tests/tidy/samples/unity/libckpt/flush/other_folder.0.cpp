namespace ckpt::flush {

namespace {

constexpr int retries_max = 3;

}  // namespace

}  // namespace ckpt::flush
