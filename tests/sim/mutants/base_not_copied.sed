# The committed step counts as safe: after a restore its lost copies are never made again.
s/facts_\.is_useless\(at\)/(facts_.is_fenced(at) || (facts_.committed \&\& at <= *facts_.committed))/
s/at < \*facts_\.committed/at <= *facts_.committed/
