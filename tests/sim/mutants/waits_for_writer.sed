# The part of a node that hangs is never given to another one.
s/if \(hangs && !is_lost\) hung_.insert\(node\);/if (hangs \&\& !is_lost) continue;/
