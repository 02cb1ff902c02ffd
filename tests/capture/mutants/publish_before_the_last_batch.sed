# Tells the end when all is queued, not when all has ended.
s/if \(ended_ == next_ && !has_left\(\) && /if (!has_left() \&\& /
s/^  state_\.begin_end\(\);/  state_.begin_end();\n  queue_.queued -= next_ - ended_;/
