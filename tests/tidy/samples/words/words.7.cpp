// TODO: later.
class SlotManager {};
class SlotImpl {};
struct StringUtil {};
int get_size();
PFN_cuMemcpyBatchAsync_v13000 copy;
// FIXME
