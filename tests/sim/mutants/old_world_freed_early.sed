# Shards that another number of ranks saved are freed as soon as the new ranks train.
s/if \(facts_\.committed && id\.at == \*facts_\.committed\) return false;/if (is_go \&\& decree.start->is_of_others() \&\& id.at == *decree.start->base) return true;\n    &/
