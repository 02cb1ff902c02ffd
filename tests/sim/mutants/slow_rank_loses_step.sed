# A step is given up as soon as one rank has not captured it yet.
s/rank\.report->last_seen && \*rank\.report->last_seen >= at\.step/rank.report->last_seen.has_value()/
