# Shards that another number of ranks saved are freed as soon as the new ranks train.
s/if \(facts_\.is_newest_committed\(id\.at\)\) return facts_\.given_up == id\.at;/if (is_go \&\& decree.start->is_of_others() \&\& id.at == *decree.start->base) return true;\n    &/
