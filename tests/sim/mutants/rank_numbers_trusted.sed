# A rank gets the shard of the rank that had its number, when there were more or fewer of them.
s/if \(start\.is_of_others\(\)\) \{/if (start.is_of_others() \&\& rank_number >= start.digests.size()) {/
