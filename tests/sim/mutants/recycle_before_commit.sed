# Frees all but the newest sealed step, committed or not.
s/if \(facts_\.is_newest_committed\(id\.at\)\) return facts_\.given_up == id\.at;/std::size_t held = 0; slots_.for_each_sealed([\&](const Slot\&, bool) { ++held; }); if (held > 1 \&\& facts_.committed \&\& id.at <= *facts_.committed) return true;/
