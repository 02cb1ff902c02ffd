# States a report or a decree once on each line: what changed since is never sent.
s/const bool is_said = line\.said == statement_\.number .*$/const bool is_said = line.said != 0;/
