# A rank gets the shard of the rank that had its number, when there were more or fewer of them.
s/if \(start\.is_of_others\(\)\) co_return true;/if (start.is_of_others()) co_return rank >= start.digests.size();/
