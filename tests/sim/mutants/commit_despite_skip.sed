# A step counts as committed when some rank has it: the others' skips do not matter.
s/return std::all_of\(copies\.begin\(\), copies\.end\(\), /return std::any_of(copies.begin(), copies.end(), /
