# Frees all but the newest sealed step, committed or not.
s/if \(committed_ && id\.at == \*committed_\) return false;/if (report_.holdings.size() > 1 \&\& committed_ \&\& id.at <= *committed_) return true;/
