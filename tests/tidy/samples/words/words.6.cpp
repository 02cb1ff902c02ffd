// TODO: later.
class SlotManager {};
class SlotImpl {};
struct StringUtil {};
int get_size();
// FIXME
