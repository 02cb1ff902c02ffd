# A step is given up as soon as one rank has not captured it yet.
s/rank\.report->has_seen && rank\.report->last_seen >= at\.step/rank.report->has_seen/
