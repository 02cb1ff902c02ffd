# Forgets that a restore to an older step abandons what came after it.
s/return start\.has_base && at\.timeline < start\.timeline && at > start\.base;/return start.has_base \&\& at.timeline > start.timeline + 1000;/
