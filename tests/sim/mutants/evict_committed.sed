# A restore of an older step may take the Slot of the newest committed one.
s/if \(facts_\.committed && slot\.id\(\)\.at == \*facts_\.committed\) return false;//
