# A restore of an older step may take the Slot of the newest committed one.
s/if \(committed_ && slot\.id\(\)\.at == \*committed_\) return false;//
