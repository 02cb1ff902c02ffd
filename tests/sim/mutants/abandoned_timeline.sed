# Forgets that a restore to an older step abandons what came after it.
s/return format::is_abandoned\(history, at\);/return at.timeline > newest_timeline(history) + 1000;/
