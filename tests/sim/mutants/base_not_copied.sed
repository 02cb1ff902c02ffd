# The committed step counts as safe: after a restore its lost copies are never made again.
s/at < \*job_\.committed\(\)/at <= *job_.committed()/
