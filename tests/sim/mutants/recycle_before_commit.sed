# Frees all but the newest sealed step, committed or not.
s/if \(facts_\.committed && id\.at == \*facts_\.committed\) return false;/if (report_.holdings.size() > 1 \&\& facts_.committed \&\& id.at <= *facts_.committed) return true;/
