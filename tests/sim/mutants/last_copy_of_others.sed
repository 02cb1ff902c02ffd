# A step that another number of ranks saved is rejected when one node alone has a part of it.
s/if \(copies\[rank\]->nodes\.size\(\) == 1\) \{/if (copies[rank]->nodes.size() == 1 \&\& coverage.is_of_others) coverage.missing.push_back(rank);\n      &/
